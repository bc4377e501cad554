"""Batches of an iterable dataset: counted where they are made (in a worker, too), and skipped before they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

UNKNOWN = -1
"""A number of samples that only the finished batch can tell."""


class Padding:
    """A sample that is there to fill up a batch."""

    __slots__ = ("sample",)

    def __init__(self, sample: Any) -> None:
        self.sample = sample


class CountingCollate:
    """``collate_fn`` whose result is ``(samples, real samples, batch)``; both numbers `UNKNOWN` without batching."""

    def __init__(self, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self.collate_fn = collate_fn
        self.batched = batched
        self.skip = 0
        """Batches of the loader, over all its workers, that will be thrown away and need not be made."""
        self._made = 0

    def start(self, skip: int) -> None:
        """A new iteration, of which the first ``skip`` batches are thrown away. Counts before workers are started."""
        self.skip, self._made = skip, 0

    def __call__(self, data: Any) -> tuple[int, int, Any]:
        if self.skip and self._is_skipped():
            return UNKNOWN, UNKNOWN, None
        if not self.batched:
            if type(data) is Padding:
                return UNKNOWN, 0, self.collate_fn(data.sample)
            return UNKNOWN, UNKNOWN, self.collate_fn(data)
        rows = real = len(data)
        while real and type(data[real - 1]) is Padding:
            real -= 1
            data[real] = data[real].sample
        return rows, real, self.collate_fn(data)

    def _is_skipped(self) -> bool:
        # A loader asks its workers in turn and leaves out those that have ended, so batch `made` of this worker comes
        # at this place or earlier: what is skipped here is always among those thrown away.
        worker = get_worker_info()
        at = self._made if worker is None else self._made * worker.num_workers + worker.id
        self._made += 1
        if at >= self.skip:
            self.skip = 0
            return False
        return True
