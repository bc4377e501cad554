"""A loader that rank 0 reads for all: every rank gets its own batches, and an error while reading reaches all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drivetrain.data.loader import Known, PreparedLoader
from drivetrain.data.position import Start
from drivetrain.data.reading_rank import from_rank_zero
from drivetrain.data.rounds import Dealer, Handed
from drivetrain.data.transport import packed, unpacked
from drivetrain.runtime.comm import Comm, LocalComm


class DispatchLoader(PreparedLoader):
    """Reads on rank 0 only, one round ahead of what it hands out, and gives each rank its share of every round.

    Batches may be of any structure, type and shape, different ones for different ranks; objects travel pickled between
    the ranks of the run. Order and remainder are as `Dealer` says.
    """

    ranks: Comm
    dealer: Dealer
    _share_of_rank: list[int] | None
    share: int
    """Which share of a round is this rank's; ranks of one data group have the same."""

    def __init__(self, *args: Any, ranks: Comm, dealer: Dealer, share: int, **kwargs: Any) -> None:
        """
        Args:
            ranks: all ranks that iterate this loader together.
            share: this rank's share of the round, from 0 on, below ``dealer.num_ranks``.
        """
        super().__init__(*args, comm=LocalComm(), **kwargs)
        self.__dict__.update(ranks=ranks, dealer=dealer, share=share, _share_of_rank=None)

    def _open(self, start: Start) -> tuple[Iterator[Any], Known | None]:
        if self._share_of_rank is None:
            self.__dict__["_share_of_rank"] = self.ranks.all_gather_object(self.share)
        rounds: list[Iterator[list[Handed]]] = []

        def open_inner() -> None:
            batches = start.batch * (1 if self.dealer.split else self.dealer.num_ranks)
            source, known = super(DispatchLoader, self)._open(Start(start.epoch, batches, start.given))
            rounds.append(self.dealer.deal(source if known is None else _with(source, known)))

        from_rank_zero(self.ranks, open_inner, "a dispatched loader")
        return self._received(rounds[0] if rounds else iter(())), None

    def _received(self, rounds: Iterator[list[Handed]]) -> Iterator[Handed]:
        """This rank's share of each round. ``rounds`` is empty on the ranks that do not read."""
        mine: list[Handed] = []
        sent = {share for rank, share in enumerate(self._share_of_rank or ()) if rank > 0}

        def read() -> list[bytes | None] | None:
            shares = next(rounds, None)
            if shares is None:
                return None
            mine[:] = [shares[self.share]]
            return [packed(share) if number in sent else None for number, share in enumerate(shares)]

        last = False
        while not last:
            parcels = from_rank_zero(self.ranks, read, "a dispatched loader")
            if parcels is None:
                return
            if self.ranks.rank > 0:
                mine[:] = [unpacked(parcels[self.share])]
            last = mine[0].last
            parcels = None
            yield mine.pop()
        next(rounds, None)  # lets the loader inside end its workers

    def _num_batches(self) -> int:
        inner = super()._num_batches()
        if self.dealer.split:
            return inner
        complete = inner // self.dealer.num_ranks
        return complete if self.dealer.drop_last else -(-inner // self.dealer.num_ranks)


def _with(batches: Iterator[Any], known: Known) -> Iterator[tuple[Any, ...]]:
    return ((batch, *known(), -1) for batch in batches)
