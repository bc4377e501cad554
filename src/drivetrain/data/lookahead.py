"""One batch ahead of what is handed out: the only way to know the last batch of a stream before it is out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from drivetrain.data.collation import UNKNOWN


def streamed(batches: Iterator[Any], skip: int, keep: Callable[[], None] | None = None) -> Iterator[Any]:
    """The fields of `Handed` for each of ``batches`` (samples, real samples, batch) after the first ``skip``.

    Args:
        keep: called when ``batches`` stands right after the one that is handed out next.
    """
    for _ in range(skip):
        next(batches, None)
    pending = next(batches, None)
    out: list[Any] = []
    while pending is not None:
        if keep is not None:
            keep()
        following = next(batches, None)
        out.append((pending[2], pending[0], pending[1], following is None, -1))
        pending, following = following, None
        yield out.pop()  # nothing here holds on to the batch that is out


def uncounted(batches: Iterator[Any], real: int | None = UNKNOWN) -> Iterator[tuple[int, int | None, Any]]:
    """Batches of which only the batches themselves tell how many samples they hold."""
    return ((UNKNOWN, real, batch) for batch in batches)
