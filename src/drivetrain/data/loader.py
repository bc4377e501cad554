"""The loader that the user holds: a torch `DataLoader` that knows its share, its device, its place and its end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from drivetrain.core.errors import InputError
from drivetrain.data.collation import UNKNOWN, CountingCollate
from drivetrain.data.feed import Feed
from drivetrain.data.order import Order
from drivetrain.data.placement import mover
from drivetrain.data.position import Position, Start
from drivetrain.data.rounds import Handed
from drivetrain.data.rows import find_batch_size
from drivetrain.runtime.accumulation import Loop, Loops


class PreparedLoader(DataLoader, Loop):
    """The share of one rank in a loader.

    Iterating hands out batches on the device. While a batch is out, the attributes of `Loop` tell about it:
    ``end_of_data`` (this is the last one on this rank), ``num_valid`` (its samples that are not padding),
    ``batch_rows`` and ``remainder``. Every `iter` is a new epoch: they count on from 0 unless `set_epoch` says
    otherwise, and a shuffle is a function of its seed and the epoch.

    Attributes that are not its own are those of the loader inside, a copy of the one given; setting one sets it there.
    """

    _own = frozenset(
        {*Loop.__annotations__, "inner", "feed", "order", "loops", "device", "non_blocking", "position", "skip_batches"}
        | {"_move", "_refresh", "_visible", "_running", "_expected_remainder", "iteration", "end_of_dataloader"}
        | {"even_batches"}
    )

    def __init__(
        self,
        inner: DataLoader,
        *,
        order: Order,
        loops: Loops,
        feed: Feed | None = None,
        dataset: Any = None,
        device: torch.device | None = None,
        non_blocking: bool = False,
        expected_remainder: int = -1,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            inner: the loader that reads. It belongs to this object from now on.
            feed: what gives it its indices; None for an iterable dataset, whose ``collate_fn`` is a `CountingCollate`
                then, or for a loader with an ``__iter__`` of its own, of which nothing is known.
            dataset: what is shown as ``dataset``; None: that of ``inner``.
            device: where batches go; None: they stay where they are.
            expected_remainder: real samples in the last global batch, 0 for a full one, -1 unknown.
            refresh: called at the start of each iteration, on all ranks.
        """
        self.inner, self.feed, self.order, self.loops = inner, feed, order, loops
        self.device, self.non_blocking = device, non_blocking
        self.position = Position()
        self.skip_batches = 0
        self._move = None if device is None else mover(device, non_blocking)
        self._refresh = refresh
        self._visible = inner.dataset if dataset is None else dataset
        self._expected_remainder = expected_remainder
        self._running: _Running | None = None

    # --- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._refresh is not None:
            self._refresh()
        start = self.position.take()
        if start.batch < self.skip_batches:
            start = Start(start.epoch, self.skip_batches, start.given)
        self._tell_epoch(start.epoch)
        source = self._open(start)
        running = self._running = _Running(start, self.batches_out)
        return self._batches(source, running)

    def _open(self, start: Start) -> Iterator[Handed]:
        """Everything that ranks agree on for an epoch happens in here, before the first batch is asked for."""
        if self.feed is not None:
            self.feed.next_start = start
            iterator = iter(self.inner)
            assert self.feed.run is not None
            self.feed.begin(self.feed.run)
            return _indexed(iterator, self.feed.run.known.popleft)
        self.order.begin(start)
        collate = self.inner.collate_fn
        if isinstance(collate, CountingCollate):
            collate.start(start.batch)
            return _streamed(iter(self.inner), start.batch)
        return _uncounted(iter(self.inner), start.batch)

    def _batches(self, source: Iterator[Handed], running: _Running) -> Iterator[Any]:
        loops, move, state = self.loops, self._move, self.__dict__
        state.update(end_of_data=False, remainder=self._expected_remainder, num_valid=None, batch_rows=None)
        full = state["full_rows"] = 0
        loops.enter(self)
        try:
            for batch, rows, real, last, remainder in source:
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
                loops.handed_out(self)
                yield batch
        finally:
            # An iterator that was left open and ends late must not touch the iteration that came after it.
            if self._running is running:
                self._running = None
                loops.leave(self)

    def __len__(self) -> int:
        return max(0, self._num_batches() - self.skip_batches)

    def _num_batches(self) -> int:
        return len(self.inner)

    # --- place -------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is ``epoch``; tells samplers and dataset, those that want to know."""
        self.position.set_epoch(epoch)
        self._tell_epoch(epoch)

    def _tell_epoch(self, epoch: int) -> None:
        part = self.batch_sampler if self.batch_sampler is not None else self.sampler
        while part is not None:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            part = getattr(part, "batch_sampler", None) or getattr(part, "sampler", None)
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
        """Where this loader stands, JSON-able: the epoch, the batches of it that have been handed out, and its order.

        After the last batch, and after a loop that was left early, that is the start of the next epoch.
        """
        running = self._running
        inside = running is not None and not self.end_of_data
        if running is not None and inside:
            epoch, batch = running.start.epoch, running.start.batch + self.batches_out - running.batches_before
        else:
            epoch, batch = self.position.epoch, self.position.batch
        return {"epoch": epoch, "batch": batch, "order": self.order.state_dict(inside=inside and batch > 0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter` goes on at ``state``, in the same order.

        Raises:
            InputError: ``state`` is not what `state_dict` returned.
        """
        self.position.restore(state)
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
        """The dataset; on several ranks that share an iterable one by reading it all, its `IterableDatasetShard`."""
        return self._visible

    @property
    def batch_sampler(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The batch sampler, a `BatchSamplerShard` on several ranks; None without batching."""
        if self.feed is not None and self.inner.batch_sampler is self.feed:
            return self.feed.source
        return self.inner.batch_sampler

    @property
    def sampler(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sampler that gives the indices; a batch sampler where the loader was made with one as its sampler."""
        if self.feed is not None and self.inner.sampler is self.feed:
            return self.feed.source if self.feed.batched else getattr(self.feed.source, "sampler", self.feed.source)
        return self.inner.sampler

    def get_sampler(self) -> Any:
        """The sampler that orders the indices, or None."""
        return None if self.feed is None else self._innermost().sampler

    def set_sampler(self, sampler: Any) -> None:
        """Take the indices from ``sampler`` from the next epoch on.

        Raises:
            InputError: the batches come from a batch sampler that holds no sampler, or from an iterable dataset.
        """
        batched = None if self.feed is None else self._innermost()
        if self.feed is None or batched is None or getattr(batched, "sampler", None) is None:
            raise InputError("this loader takes its samples from no sampler, so none can be set on it.")
        from drivetrain.data.order import arranged

        batched.sampler, self.feed.order = arranged(sampler, self.feed.comm)
        self.order = self.feed.order

    def _innermost(self) -> Any:
        assert self.feed is not None
        part = self.feed.source
        while not isinstance(part, BatchSampler) or hasattr(part, "batch_sampler"):
            if not hasattr(part, "batch_sampler"):
                break
            part = part.batch_sampler
        return part

    @property
    def even_batches(self) -> bool:
        """Whether the end is padded so that all ranks get as many batches."""
        return getattr(self.batch_sampler, "even_batches", True)

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        if hasattr(self.batch_sampler, "even_batches"):
            self.batch_sampler.even_batches = value

    @property
    def total_batch_size(self) -> int:
        """Samples of a full batch over all ranks."""
        source = self.batch_sampler if self.batch_sampler is not None else self.sampler
        size = getattr(source, "batch_size", None) or self.inner.batch_size or 1
        return size * (1 if getattr(source, "split_batches", False) else getattr(source, "num_processes", 1))

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
        if name == "inner" or (name.startswith("__") and name.endswith("__")):  # a copy in the making
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)


class _Running:
    """The iteration whose batches are being handed out."""

    __slots__ = ("batches_before", "start")

    def __init__(self, start: Start, batches_before: int) -> None:
        self.start, self.batches_before = start, batches_before


def _indexed(batches: Iterator[Any], known: Callable[[], tuple[int, int, bool]]) -> Iterator[Any]:
    for batch in batches:
        rows, real, last = known()
        yield batch, rows, real, last, -1


def _streamed(batches: Iterator[Any], skip: int) -> Iterator[Any]:
    """Without the first ``skip``; one batch is read ahead, for only then it shows which one is the last."""
    for _ in range(skip):
        next(batches, None)
    pending = next(batches, None)
    while pending is not None:
        following = next(batches, None)
        rows, real, batch = pending
        yield batch, rows, real, following is None, -1
        pending = following


def _uncounted(batches: Iterator[Any], skip: int) -> Iterator[Any]:
    return _streamed(((UNKNOWN, UNKNOWN, batch) for batch in batches), skip)
