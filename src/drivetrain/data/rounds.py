"""What the reading rank of a dispatching loader deals out: batches in, one share for each rank out; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from drivetrain.core.errors import InputError
from drivetrain.data.collation import UNKNOWN
from drivetrain.data.rows import concatenate_rows, find_batch_size, slice_rows


class Handed(NamedTuple):
    """A batch as a loader hands it out on one rank."""

    batch: Any
    rows: int | None
    """Samples in it; None where nobody knows."""
    real: int | None
    """How many of them, from the first on, are not padding."""
    last: bool
    """Whether the epoch ends with it."""
    remainder: int = -1
    """Real samples in the last global batch; known with the last batch only."""


@dataclass(frozen=True)
class Dealer:
    """How batches become shares.

    A round is ``num_ranks`` batches, one for each rank, or one batch cut into pieces with ``split``. At the end of the
    data, what is left of a round is put together and cut into equal pieces; where that does not come out even, the
    first samples of the epoch fill up. Batches that cannot be put together (their shapes differ) stay whole, and ranks
    that are left without get the round's first batch as padding.
    """

    num_ranks: int
    split: bool
    drop_last: bool
    batch_size: int | None
    """Samples of a full batch; None where batches come ready-made, and then a complete round is dealt as it is."""
    slice_fn: Callable[..., Any] | None = None
    """The user's way to cut a batch: ``slice_fn(batch, slice, process_index=..., num_processes=...)``."""

    def deal(self, source: Iterable[tuple[Any, ...]]) -> Iterator[list[Handed]]:
        """The shares of one round after the other, by rank. ``source`` gives the fields of `Handed`."""
        first: list[Handed] | None = None
        for group, last in self._groups(source):
            first = first or group
            yield self._shares(group, first, last)

    def _groups(self, source: Iterable[tuple[Any, ...]]) -> Iterator[tuple[list[Handed], bool]]:
        size = 1 if self.split else self.num_ranks
        group: list[Handed] = []
        held: list[Handed] | None = None
        for fields in source:
            handed = _measured(Handed(*fields))
            group.append(handed)
            if not handed.last and len(group) < size:
                continue
            if not self.drop_last:
                yield group, handed.last
            elif len(group) == size:  # whether it is the last one shows when the next is complete
                if held is not None:
                    yield held, False
                held = group
            group = []
        if held is not None:
            yield held, True

    def _shares(self, group: list[Handed], first: list[Handed], last: bool) -> list[Handed]:
        total = _total(group)
        if self.slice_fn is None and not self.split and self._is_even(group, last):
            shares = [handed._replace(real=handed.rows) for handed in group]
        elif self.split or self.slice_fn is not None:
            shares = self._pieces(group, first)
        else:
            try:
                shares = self._pieces(group, first)
            except InputError:
                shares = self._whole(group)
        return [share._replace(last=last, remainder=total if last else -1) for share in shares]

    def _is_even(self, group: list[Handed], last: bool) -> bool:
        if len(group) < self.num_ranks:
            return False
        return not last or self.batch_size is None or group[-1].rows in (None, self.batch_size)

    def _pieces(self, group: list[Handed], first: list[Handed]) -> list[Handed]:
        batch, total = _together(group)
        piece, missing = total // self.num_ranks, 0
        if total % self.num_ranks:
            piece += 1
            missing = piece * self.num_ranks - total
            batch = concatenate_rows([batch, _head(first, missing)], [total, missing])
        return [self._piece(batch, rank, piece, total) for rank in range(self.num_ranks)]

    def _piece(self, batch: Any, rank: int, piece: int, total: int) -> Handed:
        start = rank * piece
        if self.slice_fn is None:
            part = slice_rows(batch, start, start + piece, piece * self.num_ranks)
        else:
            cut = slice(start, start + piece)
            part = self.slice_fn(batch, cut, process_index=rank, num_processes=self.num_ranks)
        return Handed(part, piece, max(0, min(piece, total - start)), False)

    def _whole(self, group: list[Handed]) -> list[Handed]:
        own = [handed._replace(real=handed.rows) for handed in group]
        return own + [group[0]._replace(real=0)] * (self.num_ranks - len(group))


def _measured(handed: Handed) -> Handed:
    if handed.rows != UNKNOWN:
        return handed
    return handed._replace(rows=find_batch_size(handed.batch))


def _total(group: list[Handed]) -> int:
    """Samples in a round; -1 where nobody knows."""
    return -1 if any(handed.rows is None for handed in group) else sum(handed.rows or 0 for handed in group)


def _together(group: list[Handed]) -> tuple[Any, int]:
    if any(handed.rows is None for handed in group):
        raise InputError(
            f"a batch of type {type(group[0].batch).__name__} holds no tensor, so the number of its samples is unknown "
            "and it cannot be shared between ranks by rows. Use dispatch_batches=False, or split_batches=False."
        )
    rows = [handed.rows or 0 for handed in group]
    return concatenate_rows([handed.batch for handed in group], rows), sum(rows)


def _head(first: list[Handed], num_rows: int) -> Any:
    """The first ``num_rows`` samples of an epoch's first round, which is repeated if it has fewer."""
    batch, total = _together(first)
    parts = [slice_rows(batch, 0, min(total, num_rows - at), total) for at in range(0, num_rows, total)]
    return concatenate_rows(parts, [min(total, num_rows - at) for at in range(0, num_rows, total)])
