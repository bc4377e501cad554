"""An orderly end: what stands on the process group lets go of it, then the group ends, then the process."""

from __future__ import annotations

import atexit
import gc
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Closable(Protocol):
    """Something with an end."""

    def close(self) -> None:
        """End it. Safe to call twice."""
        ...


class _End:
    """What has to happen at the end of the process. There is one process, so there is one of these."""

    def __init__(self) -> None:
        self.lets_go: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
        self.groups: list[Closable] = []

    def run(self) -> None:
        for holder, let_go in list(self.lets_go.items()):
            let_go(holder)
        self.lets_go.clear()
        gc.collect()  # reference cycles may hold works of the group
        while self.groups:
            self.groups.pop().close()


_END = _End()


def at_exit(group: Closable) -> None:
    """Close ``group`` when the interpreter ends, after all that stands on it has let go."""
    if not _END.groups:
        atexit.register(_END.run)
    _END.groups.append(group)


def before_groups_end(holder: Any, let_go: Callable[[Any], None]) -> None:
    """Call ``let_go(holder)`` before process groups end, if ``holder`` is still alive then."""
    _END.lets_go[holder] = let_go


def close_now() -> None:
    """Do at once what would be done at the end of the process."""
    _END.run()


def destroy(group: Any = None) -> None:
    """End ``group``; without one, the default group, whoever opened it, and all that stands on it."""
    import torch.distributed as dist

    if group is None:
        close_now()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group(group)
