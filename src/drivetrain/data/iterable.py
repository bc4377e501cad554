"""The share of one rank, and of each of its workers, in an iterable dataset that everybody reads from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from drivetrain.core.errors import ConfigError
from drivetrain.data.collation import Padding


class IterableDatasetShard(IterableDataset):
    """The samples of ``dataset`` for one of several ranks.

    Samples are taken in rounds: ``batch_size`` for each rank, or ``batch_size`` for all together with
    ``split_batches``. Each rank gets its contiguous piece of every round. The last round, if it is not full, is dropped
    with ``drop_last``; else filled up with the samples of the first round; else, without ``even_batches``, cut as it is.

    In a loader with workers each of them reads the whole dataset and gives every W-th round, so order and samples are
    those of a loader without workers. A dataset that asks how many workers there are splits by itself: then each worker
    gives all rounds of what it reads.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        *,
        even_batches: bool = True,
        mark_padding: bool = False,
    ) -> None:
        """
        Args:
            mark_padding: whether samples that only fill up come wrapped in `Padding`.

        Raises:
            ConfigError: ``split_batches`` with a batch size that the ranks cannot share evenly.
        """
        if split_batches and batch_size > 1 and batch_size % num_processes:
            raise ConfigError(
                f"split_batches=True cuts each batch into {num_processes} equal pieces, but the batch size is "
                f"{batch_size}. Give the loader a batch_size that is a round multiple of {num_processes}."
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.mark_padding = mark_padding
        self.epoch = 0
        self.seed = 0
        """The seed of epoch 0 of a dataset that shuffles by its generator and knows no epochs."""
        self.split_by_worker_init = False
        """Whether the user's ``worker_init_fn`` has given this worker a part of the dataset."""

    @property
    def piece(self) -> int:
        """Samples of each round for one rank."""
        return self.batch_size // self.num_processes if self.split_batches else self.batch_size

    @property
    def round(self) -> int:
        """Samples of each round for all ranks together."""
        return self.batch_size if self.split_batches else self.batch_size * self.num_processes

    def set_epoch(self, epoch: int) -> None:
        """Keep ``epoch`` for datasets that shuffle by a generator, and pass it on to those that know epochs."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self._seed_generator()
        samples, turn, turns = self._stream()
        first: list[Any] = []
        pending: list[Any] = []
        start = self.process_index * self.piece
        number = 0
        for sample in samples:
            pending.append(sample)
            if len(pending) == self.round:
                if number % turns == turn:
                    yield from pending[start : start + self.piece]
                first = first or pending
                pending = []
                number += 1
        if pending and not self.drop_last and number % turns == turn:
            yield from self._last_piece(pending, first or pending)

    def _seed_generator(self) -> None:
        generator = getattr(self.dataset, "generator", None)
        if isinstance(generator, torch.Generator) and not hasattr(self.dataset, "set_epoch"):
            generator.manual_seed(self.seed + self.epoch)

    def _stream(self) -> tuple[Iterator[Any], int, int]:
        """The dataset's samples, which of the rounds are this worker's, and of how many."""
        info = get_worker_info()
        if info is None:
            return iter(self.dataset), 0, 1
        samples, asked = _started(self.dataset)
        if asked or self.split_by_worker_init:
            return samples, 0, 1
        return samples, info.id, info.num_workers

    def _last_piece(self, pending: list[Any], first: list[Any]) -> Iterator[Any]:
        start = self.process_index * self.piece
        real = pending[start : start + self.piece]
        yield from real
        if self.even_batches:
            skipped = max(start - len(pending), 0) % len(first)
            for sample in islice(cycle(first), skipped, skipped + self.piece - len(real)):
                yield Padding(sample) if self.mark_padding else sample

    def __len__(self) -> int:
        rounds = len(self.dataset) // self.round if self.drop_last else -(-len(self.dataset) // self.round)
        return rounds * self.piece

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not set yet: an unpickled copy in the making
            raise AttributeError(name)
        return getattr(self.dataset, name)


class WatchedInfo:
    """What torch tells in a worker about it, noting which of it was asked for."""

    def __init__(self, info: Any, **replaced: Any) -> None:
        self._info, self._replaced = info, replaced
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return self._replaced[name] if name in self._replaced else getattr(self._info, name)


def _started(dataset: Any) -> tuple[Iterator[Any], bool]:
    """The samples of ``dataset``, and whether it asked for the number of workers before it gave the first one."""
    info = torch_worker._worker_info
    watched = WatchedInfo(info)
    torch_worker._worker_info = watched  # pyright: ignore[reportAttributeAccessIssue]
    try:
        samples = iter(dataset)
        head = list(islice(samples, 1))
    finally:
        torch_worker._worker_info = info
    return chain(head, samples), "num_workers" in watched.asked


class WorkerInit:
    """The user's ``worker_init_fn``, run as if its dataset had not been wrapped in an `IterableDatasetShard`.

    Torch's documentation shows two ways to split a dataset by workers; the second changes the worker's copy of it here.
    """

    def __init__(self, init: Callable[[int], None]) -> None:
        self.init = init

    def __call__(self, worker_id: int) -> None:
        info: Any = torch_worker._worker_info
        shard = info.dataset
        watched = WatchedInfo(info, dataset=shard.dataset)
        torch_worker._worker_info = watched  # pyright: ignore[reportAttributeAccessIssue]
        try:
            self.init(worker_id)
        finally:
            torch_worker._worker_info = info
        shard.split_by_worker_init = "dataset" in watched.asked
