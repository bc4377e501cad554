"""Which rank sees which sample: arithmetic on batches of indices, without a loader, a tensor or a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice
from typing import Any, NamedTuple, TypeAlias

Share: TypeAlias = "tuple[list[Any], int]"
"""The indices of one batch on one rank, and how many of them, from the first on, are real and not padding."""


class Ranks(NamedTuple):
    """How many ranks share the data, and which of them this is."""

    num: int
    rank: int


def whole_batches(
    batches: Iterable[list[Any]], ranks: Ranks, *, batch_size: int | None, drop_last: bool, even: bool
) -> Iterator[Share]:
    """Batch ``i`` goes to rank ``i mod P``; ``P`` batches make a round.

    Only the last round may be incomplete: fewer than ``P`` batches, or a short one at its end. With ``drop_last`` a
    round that lacks batches is left out. With ``even`` it is completed from the first round: indices in order, running
    on from rank to rank, or whole batches where ``batch_size`` is None. Otherwise each rank gets what there is.
    """
    first: list[list[Any]] = []
    pending: list[list[Any]] = []
    for batch in batches:
        if len(pending) == ranks.num:  # more follows, so this round is not the last one
            first = first or pending
            yield pending[ranks.rank], len(pending[ranks.rank])
            pending = []
        pending.append(batch)
    if not pending or (drop_last and len(pending) < ranks.num):
        return
    if even and not drop_last:
        yield _completed(pending, first or pending, ranks, batch_size)
    elif ranks.rank < len(pending):
        yield pending[ranks.rank], len(pending[ranks.rank])


def _completed(last: list[list[Any]], first: list[list[Any]], ranks: Ranks, batch_size: int | None) -> Share:
    """This rank's batch of the last round, filled up from the first round."""
    if batch_size is None:
        if ranks.rank < len(last):
            return last[ranks.rank], len(last[ranks.rank])
        return list(first[(ranks.rank - len(last)) % len(first)]), 0
    own = last[ranks.rank] if ranks.rank < len(last) else []
    short = len(last) - 1 if len(last[-1]) < batch_size else len(last)
    if ranks.rank < short:
        return own, len(own)
    already = 0 if ranks.rank == short else (ranks.rank - short) * batch_size
    if ranks.rank > short and short < len(last):
        already -= len(last[short])
    return _padded(own, batch_size, list(chain.from_iterable(first)), already), len(own)


def _padded(own: list[Any], size: int, pool: list[Any], start: int) -> list[Any]:
    """``own`` filled up to ``size`` with the items of the endlessly repeated ``pool`` from ``start`` on."""
    start %= len(pool)
    return [*own, *islice(cycle(pool), start, start + size - len(own))]


def split_batches(
    batches: Iterable[list[Any]], ranks: Ranks, *, batch_size: int, drop_last: bool, even: bool
) -> Iterator[Share]:
    """Each batch is cut into ``P`` pieces of ``batch_size // P``, piece ``r`` for rank ``r``.

    With ``even`` a short batch is filled up from the first batch; otherwise a rank whose piece is empty gets nothing.
    """
    first: list[Any] = []
    for batch in batches:
        first = first or batch
        if drop_last and len(batch) < batch_size:
            continue
        piece = max(batch_size // ranks.num, -(-len(batch) // ranks.num))
        start = ranks.rank * piece
        own = batch[start : start + piece]
        if even and len(own) < piece:
            yield _padded(own, piece, first, max(start - len(batch), 0)), len(own)
        elif own:
            yield own, len(own)


def num_whole_batches(total: int, ranks: Ranks, *, drop_last: bool, even: bool) -> int:
    """How many of ``total`` batches `whole_batches` gives to this rank."""
    complete, rest = divmod(total, ranks.num)
    if rest == 0 or drop_last:
        return complete
    return complete + int(even or ranks.rank < rest)


def num_split_batches(
    total: int, last: int | None, ranks: Ranks, *, batch_size: int, drop_last: bool, even: bool
) -> int:
    """How many of ``total`` batches `split_batches` gives to this rank.

    Args:
        last: samples in the last batch; None where nobody knows, and then it counts as one that reaches every rank.
    """
    if total == 0 or even or drop_last or last is None:
        return total
    return total - int(last <= ranks.rank * (batch_size // ranks.num))


def advanced(shares: Iterator[Share], num_batches: int) -> Iterator[Share]:
    """``shares`` without the first ``num_batches``."""
    return islice(shares, num_batches, None) if num_batches else shares
