"""The share of one rank, and of each of its workers, in an iterable dataset that everybody reads from the start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, IterDataPipe, get_worker_info
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.graph_settings import apply_random_seed

from drivetrain.core.errors import ConfigError
from drivetrain.data.collation import Padding


class IterableDatasetShard(IterableDataset):
    """The samples of ``dataset`` for one of several ranks.

    Samples are taken in rounds: ``batch_size`` for each rank, or ``batch_size`` for all together with
    ``split_batches``. Each rank gets its contiguous piece of every round. A last round that is not full is left out
    with ``drop_last``, filled up from the first round with ``even_batches``, and otherwise cut as it is.

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
        """The seed of epoch 0: of a dataset that shuffles and knows no epochs, and of workers that read it whole."""
        self.rounds_read = 0
        """Rounds of this iteration so far."""
        self.first: list[Any] = []
        """The samples of the first round, which fill up the last one."""
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
        self._seed_dataset()
        samples, turn, turns = self._stream()
        pending: list[Any] = []
        start = self.process_index * self.piece
        self._start()
        for sample in samples:
            pending.append(sample)
            if len(pending) == self.round:
                mine = self.rounds_read % turns == turn
                self.rounds_read += 1
                self.first = self.first or pending
                if mine:
                    yield from pending[start : start + self.piece]
                pending = []
        if pending and not self.drop_last and self.rounds_read % turns == turn:
            yield from self._last_piece(pending, self.first or pending)
        self.first = []

    def _start(self) -> None:
        self.rounds_read, self.first = 0, []

    def _seed_dataset(self) -> None:
        """Fix the order of a dataset that shuffles and knows no epochs."""
        seed = self.seed + self.epoch
        if isinstance(self.dataset, IterDataPipe):
            apply_random_seed(self.dataset, torch.Generator().manual_seed(seed))
        elif isinstance(getattr(self.dataset, "generator", None), torch.Generator):
            if not hasattr(self.dataset, "set_epoch"):
                self.dataset.generator.manual_seed(seed)

    def _stream(self) -> tuple[Iterator[Any], int, int]:
        """The dataset's samples, which of the rounds are this worker's, and of how many."""
        info = get_worker_info()
        if info is None or self.split_by_worker_init:
            return iter(self.dataset), 0, 1
        # Workers that all read the whole dataset must see the same shuffle, whatever generator it comes from; torch
        # has given each a seed of its own.
        _seed(info.seed - info.id if self.num_processes == 1 else self.seed + self.epoch)
        samples, splits = _started(self.dataset)
        if splits:
            _seed(info.seed)
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
        if name == "dataset" or name.startswith("__"):  # not set yet, or asked by pickle and copy of this object itself
            raise AttributeError(name)
        return getattr(self.dataset, name)


class StatefulShard(IterableDatasetShard):
    """The share of a rank in a dataset with ``state_dict`` and ``load_state_dict``, which torchdata's loader calls."""

    resumes = False
    """Whether the next iteration starts in the middle."""

    def state_dict(self) -> dict[str, Any]:
        """The place after the round that was read last, and the samples that will fill up the last round."""
        pool = self.first if self.even_batches else []
        return {"dataset": self.dataset.state_dict(), "rounds": self.rounds_read, "first": pool}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration starts at ``state``."""
        self.dataset.load_state_dict(state["dataset"])
        self.rounds_read, self.first, self.resumes = state["rounds"], state["first"], True

    def _start(self) -> None:
        if not self.resumes:
            super()._start()
        self.resumes = False


class WatchedInfo:
    """What torch tells in a worker about it, noting which of it was asked for."""

    def __init__(self, info: Any, **replaced: Any) -> None:
        self._info, self._replaced = info, replaced
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return self._replaced[name] if name in self._replaced else getattr(self._info, name)


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)


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
