"""Iterable datasets that know their own place: torchdata's loader keeps it, and a resumed epoch starts there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from drivetrain.core.optional import require
from drivetrain.data.position import Start

ARGUMENTS = (
    "batch_size num_workers collate_fn pin_memory drop_last timeout worker_init_fn multiprocessing_context generator "
    "prefetch_factor persistent_workers pin_memory_device in_order"
).split()


def stateful_copy(dataloader: DataLoader) -> DataLoader:
    """``dataloader`` as torchdata's `StatefulDataLoader`, if its dataset is iterable.

    A map-style loader is handed on: its place is a number of batches, which needs no help.

    Raises:
        MissingDependency: torchdata is not installed or older than 0.8.
    """
    module: Any = require(
        "torchdata>=0.8.0", needed_by="use_stateful_dataloader=True", module="torchdata.stateful_dataloader"
    )
    if not isinstance(dataloader.dataset, IterableDataset) or isinstance(dataloader, module.StatefulDataLoader):
        return dataloader
    given = {name: getattr(dataloader, name) for name in ARGUMENTS if hasattr(dataloader, name)}
    return module.StatefulDataLoader(dataloader.dataset, **given)


def keeps_state(dataloader: DataLoader) -> bool:
    """Whether ``dataloader`` is torchdata's, over an iterable dataset."""
    return isinstance(dataloader.dataset, IterableDataset) and type(dataloader).__module__.startswith("torchdata.")


class Snapshots:
    """The states of the loader inside: that of the batch handed out last, and the one to start from."""

    def __init__(self) -> None:
        self.latest: Any = None
        self._restored: tuple[int, int, Any] | None = None
        self._resumes = False

    def restore(self, epoch: int, batch: int, state: Any) -> None:
        """The iteration that starts at ``batch`` of ``epoch`` starts from ``state``."""
        self._restored = None if state is None else (epoch, batch, state)

    def begin(self, start: Start) -> None:
        """An iteration starts."""
        self.latest = None
        self._resumes = self._restored is not None and self._restored[:2] == (start.epoch, start.batch)

    def keep(self, inner: Any) -> None:
        """``inner`` stands after the batch that is handed out next."""
        self.latest = inner.state_dict()

    def opened(self, inner: Any) -> tuple[Iterator[Any], bool]:
        """The batches of ``inner``, and whether they start at the restored place instead of at the first batch."""
        if self._resumes and self._restored is not None:
            inner.load_state_dict(self._restored[2])
        self._restored = None
        return iter(inner), self._resumes
