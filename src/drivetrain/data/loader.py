"""The loader that the user holds: a torch `DataLoader` that knows its share, its device, its place and its end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from drivetrain.core.errors import InputError
from drivetrain.data.collation import UNKNOWN, CountingCollate
from drivetrain.data.feed import Feed
from drivetrain.data.lookahead import streamed, uncounted
from drivetrain.data.order import Order, SharedOrder, arranged
from drivetrain.data.placement import mover
from drivetrain.data.position import Position, Start
from drivetrain.data.rounds import Handed
from drivetrain.data.rows import find_batch_size
from drivetrain.data.samplers import BatchSamplerShard, SkipBatchSampler
from drivetrain.data.stateful import Snapshots
from drivetrain.runtime.accumulation import Loop, Loops
from drivetrain.runtime.comm import Comm

Known = Callable[[], "tuple[int, int, bool]"]
"""Samples, real samples, and whether it is the last: of the batch that comes next."""


class PreparedLoader(DataLoader, Loop):
    """The share of one rank in a loader.

    Iterating hands out batches on the device. While a batch is out, the attributes of `Loop` tell about it:
    ``end_of_data`` (this is the last one on this rank), ``num_valid`` (its samples that are not padding),
    ``batch_rows`` and ``remainder``. Every `iter` is a new epoch: they count on from 0 unless `set_epoch` says
    otherwise, and a shuffle is a function of its seed and the epoch.

    Attributes that are not its own are those of the loader inside, a copy of the one given. Setting one that all
    loaders of torch have sets it there.
    """

    def __init__(
        self,
        inner: DataLoader,
        *,
        comm: Comm,
        order: Order,
        loops: Loops,
        feed: Feed | None = None,
        dataset: Any = None,
        device: torch.device | None = None,
        non_blocking: bool = False,
        snapshots: Snapshots | None = None,
        total_batch_size: int | None = None,
        remainder: Callable[[], int] | None = None,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            inner: the loader that reads. It belongs to this object from now on.
            comm: the ranks that agree on ``order``.
            feed: what gives ``inner`` its indices; None for an iterable dataset.
            dataset: what is shown as ``dataset``; None: that of ``inner``.
            device: where batches go; None: they stay where they are.
            snapshots: where the states of ``inner`` are kept, if it has any of its own.
            total_batch_size: samples of a full batch over all ranks; None where that is not fixed.
            remainder: tells the real samples in the last global batch: 0 for a full one, -1 for unknown.
            refresh: called at the start of each iteration, on all ranks.
        """
        self.__dict__.update(
            inner=inner,
            comm=comm,
            order=order,
            loops=loops,
            feed=feed,
            device=device,
            non_blocking=non_blocking,
            position=Position(),
            skip_batches=0,
            batches_out=0,
            snapshots=snapshots,
            total_batch_size=total_batch_size,
            _move=None if device is None else mover(device, non_blocking),
            _shown=inner.dataset if dataset is None else dataset,
            _remainder=remainder,
            _refresh=refresh,
            _running=None,
        )

    inner: DataLoader
    comm: Comm
    order: Order
    loops: Loops
    feed: Feed | None
    device: torch.device | None
    non_blocking: bool
    position: Position
    """Which epoch comes next; shared with the loaders that `skipped` makes of this one."""
    snapshots: Snapshots | None
    skip_batches: int
    """Batches left out at the start of every epoch."""
    total_batch_size: int | None
    _move: Callable[[Any], Any] | None
    _running: _Running | None

    # --- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._refresh is not None:
            self._refresh()
        start = self.position.take()
        if start.batch < self.skip_batches:
            start = Start(start.epoch, self.skip_batches, start.given)
        self._tell_epoch(start.epoch)
        if self.snapshots is not None:
            self.snapshots.begin(start)
        remainder = -1 if self._remainder is None else self._remainder()
        told = {"end_of_data": False, "remainder": remainder, "num_valid": None, "batch_rows": None, "full_rows": 0}
        batches, known = self._open(start)
        self.__dict__.update(told)
        running = self._running = _Running(start, self.batches_out)  # from here on, so that it can be saved at once
        return self._handed_out(batches, known, running)

    def _open(self, start: Start) -> tuple[Iterator[Any], Known | None]:
        """What is read from ``start`` on: batches, and what tells of each when it comes; or `Handed`, and None.

        What ranks agree on for an epoch is agreed in here, before the first batch.
        """
        if self.feed is None:
            self.order.begin(start)
            return self._open_stream(start.batch), None
        self.feed.next_start = start
        batches = iter(self.inner)
        if not self.feed.one_to_one:
            return streamed(uncounted(batches, None if self.feed.may_pad else UNKNOWN), 0), None
        assert self.feed.run is not None
        # Torch's iterator takes the first indices now or later, depending on its workers; the order is fixed now.
        self.feed.begin(self.feed.run)
        return batches, self.feed.run.known.popleft

    def _open_stream(self, skip: int) -> Iterator[Handed]:
        collate = self.inner.collate_fn
        counted = isinstance(collate, CountingCollate)
        if self.snapshots is not None:
            batches, resumed = self.snapshots.opened(self.inner)
            keep = partial(self.snapshots.keep, self.inner)
            return streamed(batches if counted else uncounted(batches), 0 if resumed else skip, keep)
        if counted:
            collate.start(skip)
        batches = iter(self.inner)
        return streamed(batches if counted else uncounted(batches), skip)

    def _handed_out(self, batches: Iterator[Any], known: Known | None, running: _Running) -> Iterator[Any]:
        loops, move, state = self.loops, self._move, self.__dict__
        full, remainder = 0, -1
        out: list[Any] = []
        loops.enter(self)
        innermost = loops.refs
        try:
            for batch in batches:
                if known is not None:
                    rows, real, last = known()
                else:
                    batch, rows, real, last, remainder = batch
                if move is not None:
                    batch = move(batch)
                if rows == UNKNOWN:
                    rows = find_batch_size(batch)
                    real = rows if real == UNKNOWN else real
                state["batch_rows"], state["num_valid"] = rows, real
                if rows is not None and rows > full:
                    full = state["full_rows"] = rows
                if last:
                    state["end_of_data"] = True
                    if remainder >= 0:
                        state["remainder"] = remainder
                if innermost and innermost[-1]() is self:  # what `handed_out` looks at first, without the call
                    state["batches_out"] += 1
                else:
                    loops.handed_out(self)
                out.append(batch)
                batch = None  # so that it is gone when the user lets go of it
                yield out.pop()
        finally:
            # An iterator that was left open and ends late must not touch the iteration that came after it.
            if self._running is running:
                self._running = None
                loops.leave(self)

    def __len__(self) -> int:
        return max(0, self._num_batches() - self.skip_batches)

    def _num_batches(self) -> int:
        """Batches of a whole epoch on this rank."""
        if self.feed is not None:
            return len(self.feed)
        samples, size = len(self.inner.dataset), self.inner.batch_size  # pyright: ignore[reportArgumentType]
        if size is None:
            return samples
        return samples // size if self.inner.drop_last else -(-samples // size)

    # --- place -------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is ``epoch``; tells samplers and dataset, those that want to know."""
        self.position.set_epoch(epoch)
        self._tell_epoch(epoch)

    def _tell_epoch(self, epoch: int) -> None:
        part: Any = self.inner.sampler if self.feed is None else self.feed.source
        while part is not None:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            part = _inside(part)
        if hasattr(self.inner.dataset, "set_epoch"):
            self.inner.dataset.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def iteration(self) -> int:
        """The epoch that is being read, or the next one."""
        return self.position.epoch if self._running is None else self._running.start.epoch

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        self.position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: the epoch, the batches of it that have been handed out, and its order.

        JSON-able, but for what a stateful loader inside adds. After the last batch, and after a loop that was left
        early, that is the start of the next epoch.
        """
        running = self._running
        inside = running is not None and not self.end_of_data
        if running is not None and inside:
            epoch, batch = running.start.epoch, running.start.batch + self.batches_out - running.batches_before
        else:
            epoch, batch = self.position.epoch, self.position.batch
        state = {"epoch": epoch, "batch": batch, "order": self.order.state_dict(inside=inside)}
        if inside and self.snapshots is not None and self.snapshots.latest is not None:
            state["inner"] = self.snapshots.latest
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter` goes on at ``state``, in the same order.

        Raises:
            InputError: ``state`` is not what `state_dict` returned.
        """
        self.position.restore(state)
        if self.snapshots is not None:
            self.snapshots.restore(self.position.epoch, self.position.batch, state.get("inner"))
        self.order.load_state_dict(state.get("order", {}))

    def skipped(self, num_batches: int) -> PreparedLoader:
        """A loader like this one that leaves out the first ``num_batches`` batches of every epoch.

        The two count epochs together: after an iteration over either, the next one is the next epoch. A position that
        was restored and not used yet is given up for it.

        Raises:
            InputError: ``num_batches`` is negative.
        """
        if num_batches < 0:
            raise InputError(f"num_batches={num_batches}: the number of batches to skip cannot be negative.")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        inner = copy.copy(self.inner)
        inner.__dict__["_iterator"] = None  # persistent workers stay with the loader that started them
        if self.feed is not None:
            feed = copy.copy(self.feed)
            feed.run = None
            inner.__dict__["batch_sampler" if inner.batch_sampler is self.feed else "sampler"] = feed
            other.__dict__["feed"] = feed
        else:
            inner.__dict__["collate_fn"] = copy.copy(inner.collate_fn)
        self.position.batch = 0
        other.__dict__.update(inner=inner, skip_batches=self.skip_batches + num_batches, _running=None, batches_out=0)
        return other

    # --- the loader inside -------------------------------------------------------------------------------------------

    @property
    def dataset(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The dataset; on several ranks that each read all of an iterable one, its `IterableDatasetShard`."""
        return self._shown

    @property
    def batch_sampler(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The batch sampler, a `BatchSamplerShard` on several ranks; None without batching."""
        if self.feed is None or self.inner.batch_sampler is not self.feed:
            return self.inner.batch_sampler
        return SkipBatchSampler(self.feed.source, self.skip_batches) if self.skip_batches else self.feed.source

    @property
    def sampler(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sampler that gives the indices; a batch sampler where the loader was made with one as its sampler."""
        if self.feed is None:
            return self.inner.sampler
        if self.feed.batched and self.inner.sampler is self.feed:
            return self.feed.source
        return self.get_sampler()

    def get_sampler(self) -> Any:
        """The sampler that orders the indices, or None."""
        sampler = getattr(self._batching(), "sampler", None)
        return sampler.inner if isinstance(sampler, SharedOrder) else sampler

    def set_sampler(self, sampler: Any) -> None:
        """Take the indices from ``sampler`` from the next epoch on.

        Raises:
            InputError: nothing gives indices here (an iterable dataset), or a batch sampler without a sampler does.
        """
        batching = self._batching()
        if self.feed is None or getattr(batching, "sampler", None) is None:
            raise InputError("this loader takes its samples from no sampler, so there is none to replace.")
        batching.sampler, order = arranged(sampler, self.comm)
        self.feed.order = order
        self.__dict__["order"] = order

    def _batching(self) -> Any:
        """The batch sampler behind those that share and skip."""
        part = None if self.feed is None else self.feed.source
        while isinstance(part, BatchSamplerShard | SkipBatchSampler):
            part = part.batch_sampler
        return part

    @property
    def even_batches(self) -> bool:
        """Whether the end is padded so that all ranks get as many batches; may be set between two epochs."""
        return self.feed is None or getattr(self.feed.source, "even_batches", True)

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        if self.feed is not None and isinstance(self.feed.source, BatchSamplerShard):
            self.feed.source.even_batches = value

    @property
    def total_dataset_length(self) -> int:
        """Samples in the dataset, over all ranks."""
        return self.dataset.total_length if hasattr(self.dataset, "total_length") else len(self.dataset)

    @property
    def end_of_dataloader(self) -> bool:
        """The contract's name of ``end_of_data``."""
        return self.end_of_data

    @end_of_dataloader.setter
    def end_of_dataloader(self, value: bool) -> None:
        self.end_of_data = value

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # not set yet, or asked by pickle and copy of this object itself
            raise AttributeError(name)
        return getattr(self.inner, name)

    # Torch's own is a Python function that keeps attributes from being set; a counter here changes with every batch.
    __setattr__ = object.__setattr__  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def _of_inner(name: str) -> property:
    """An attribute that is read from the loader inside and set there, under the checks of its class."""

    def read(loader: PreparedLoader) -> Any:
        return getattr(loader.inner, name)

    def write(loader: PreparedLoader, value: Any) -> None:
        setattr(loader.inner, name, value)

    return property(read, write)


for _name in (
    "batch_size", "collate_fn", "drop_last", "generator", "in_order", "multiprocessing_context", "num_workers",
    "persistent_workers", "pin_memory", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn",
):  # fmt: skip
    setattr(PreparedLoader, _name, _of_inner(_name))


class _Running:
    """The iteration whose batches are being handed out."""

    __slots__ = ("batches_before", "start")

    def __init__(self, start: Start, batches_before: int) -> None:
        self.start, self.batches_before = start, batches_before


def _inside(sampler: Any) -> Any:
    """The sampler that ``sampler`` takes its indices from, or None."""
    inner = getattr(sampler, "batch_sampler", None)
    return getattr(sampler, "sampler", None) if inner is None else inner
