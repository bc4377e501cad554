"""What rank 0 reads for all: its result reaches every rank, and so does its failure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from drivetrain.core.errors import CollectiveError
from drivetrain.runtime.comm import Comm


def from_rank_zero(comm: Comm, read: Callable[[], Any], what: str) -> Any:
    """What ``read()`` returns on rank 0, on every rank. Called by all ranks; the others do not read.

    Args:
        what: what is read, for the message of a failure.

    Raises:
        CollectiveError: on the other ranks, when ``read`` raises on rank 0 (where its own error goes on).
    """
    if comm.world_size == 1:
        return read()
    if comm.rank == 0:
        try:
            result = read()
        except Exception as error:
            lines = "".join(traceback.format_exception(error))
            comm.broadcast_object((f"{type(error).__name__}: {error}", lines))
            raise
        comm.broadcast_object((None, result))
        return result
    failure, result = comm.broadcast_object(None)
    if failure is not None:
        raise CollectiveError(f"rank 0 failed while it read {what} for all ranks: {failure}\n\nOn rank 0:\n{result}")
    return result
