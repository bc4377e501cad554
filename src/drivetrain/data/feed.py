"""The indices that a map-style loader reads, each batch with what is known of it before its data are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from drivetrain.data import plan
from drivetrain.data.collation import UNKNOWN
from drivetrain.data.order import Order
from drivetrain.data.plan import Share
from drivetrain.data.position import Start
from drivetrain.data.samplers import counted


class Run:
    """One iteration over the indices."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.shares: Iterator[Share] | None = None
        self.head: Share | None = None
        self.known: deque[tuple[int, int, bool]] = deque()
        """Samples, real samples and whether it is the last, of each batch whose indices have been given out."""


class Feed:
    """Stands in a torch `DataLoader` for its batch sampler, or for its sampler where it has no batching.

    Torch's iterator takes indices from it, some batches ahead where there are workers; `Run.known` remembers what they
    were until the batches come. One batch of *indices* is drawn ahead, so the last batch is known to be the last
    without reading any data ahead.
    """

    def __init__(
        self, source: Any, order: Order, *, batched: bool, padded_tail: bool = False, one_to_one: bool = True
    ) -> None:
        """
        Args:
            source: a batch sampler.
            batched: whether the loader puts the samples of a batch together; else each "batch" of ``source`` holds one
                index, of something that is a batch already.
            padded_tail: whether the last index of the last batch is padding, by the user's own sampler.
            one_to_one: whether the loader makes one batch of each list of indices, in order. A loader class with an
                ``__iter__`` of its own may do otherwise.
        """
        self.source, self.order = source, order
        self.batched, self.padded_tail, self.one_to_one = batched, padded_tail, one_to_one
        self.next_start = Start(0, 0, False)
        self.run: Run | None = None

    @property
    def may_pad(self) -> bool:
        """Whether some of the indices may be padding."""
        return self.padded_tail or getattr(self.source, "num_processes", 1) > 1

    def __iter__(self) -> Iterator[Any]:
        self.run = Run(self.next_start)
        return self._indices(self.run)

    def __len__(self) -> int:
        return len(self.source)

    def begin(self, run: Run) -> None:
        """Fix the order of ``run``, if its first index has not done so yet. Called by all ranks."""
        if run.shares is None:
            self.order.begin(run.start)
            run.shares = plan.advanced(counted(self.source), run.start.batch)
            run.head = next(run.shares, None)

    def _indices(self, run: Run) -> Iterator[Any]:
        self.begin(run)
        shares, current = run.shares, run.head
        assert shares is not None
        run.head = None
        known, batched = run.known.append, self.batched
        while current is not None:
            following = next(shares, None)
            indices, real = current
            last = following is None
            if batched:
                known((len(indices), real - (last and self.padded_tail), last))
                yield indices
            else:
                known((UNKNOWN, UNKNOWN if real else 0, last))
                yield indices[0]
            current = following
