"""Logging that knows its rank, from the first line of a script on: no Accelerator and no process group are needed."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from drivetrain.config import environ
from drivetrain.core.errors import ConfigError

LEVEL_VARIABLE = "DRIVETRAIN_LOG_LEVEL"


def process_rank() -> int:
    """The rank of this process among all of them: the process group's word, else the launcher's, else 0."""
    group = _process_group()
    return group.get_rank() if group is not None else environ.process_env().rank


def get_logger(name: str, log_level: str | int | None = None) -> MultiProcessAdapter:
    """The logger called ``name``, which speaks on the main process only unless a call says otherwise.

    The level is ``log_level`` (such as ``"INFO"``, in any case), else the variable ``DRIVETRAIN_LOG_LEVEL``, else it is
    left alone. It is set on the named logger and never on the root logger: one library's wish to be heard must not
    make every other library of the process speak up.

    Raises:
        ConfigError: the level is not one that `logging` knows.
    """
    logger = logging.getLogger(name)
    level, source = (
        (log_level, "log_level") if log_level is not None else (environ.read(LEVEL_VARIABLE), LEVEL_VARIABLE)
    )
    if level is not None:
        logger.setLevel(_checked_level(level, source))
    return MultiProcessAdapter(logger, {})


class Once:
    """What its owner has said already. Each owner (an Accelerator, a tracker, a logger) holds one of its own."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def first(self, key: str) -> bool:
        """True the first time that this ``key`` is asked about, False ever after."""
        if key in self._said:
            return False
        self._said.add(key)
        return True

    def warning(self, logger: MultiProcessAdapter, message: str, *args: object, key: str | None = None) -> None:
        """Warn through ``logger``, unless this owner has done so under the same ``key`` (default: the same words)."""
        if self.first(key if key is not None else repr((message, args))):
            logger.log(logging.WARNING, message, *args, stacklevel=3)  # 3: whoever called this method


class MultiProcessAdapter(logging.LoggerAdapter):
    """A `logging.LoggerAdapter` for many processes that run the same line.

    Every message gets the prefix ``[RANK n] ``. All methods (``info``, ``warning``, ...) take two more keywords:

    * ``main_process_only`` (True): only rank 0 speaks. False: every rank does.
    * ``in_order`` (False): every rank speaks, one after the other; all of them must make the call, at the same level.
      ``main_process_only`` is then ignored. Before the process group exists there is no order to keep, and each
      speaks at once.
    """

    def __init__(self, logger: logging.Logger, extra: dict[str, object] | None = None) -> None:
        super().__init__(logger, extra)
        self._once = Once()

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Prefix the rank, and join the caller's ``extra`` with the adapter's instead of dropping it."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"[RANK {process_rank()}] {msg}", kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log ``msg % args`` at ``level`` on the ranks chosen by ``main_process_only`` and ``in_order``."""
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        if not self.isEnabledFor(level):
            return
        kwargs.setdefault("stacklevel", 2)  # the caller's line, not this one
        group = _process_group() if in_order else None
        if group is None:
            if in_order or not main_process_only or process_rank() == 0:
                text, options = self.process(msg, kwargs)
                self.logger.log(level, text, *args, **options)
            return
        rank = group.get_rank()
        for turn in range(group.get_world_size()):
            if turn == rank:
                text, options = self.process(msg, kwargs)
                self.logger.log(level, text, *args, **options)
            group.barrier()

    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """`warning`, but the second and later calls with the same arguments on this adapter say nothing."""
        if self.isEnabledFor(logging.WARNING) and self._once.first(repr((args, sorted(kwargs.items())))):
            kwargs.setdefault("stacklevel", 3)  # one frame further out than `log`
            self.log(logging.WARNING, *args, **kwargs)


def _process_group() -> Any:
    """The module `torch.distributed` if a process group is open, else None. Never imports torch by itself."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _checked_level(level: str | int, source: str) -> str | int:
    """The level as `logging` wants it."""
    if isinstance(level, int):
        return level
    name = level.strip().upper()
    if not isinstance(logging.getLevelName(name), int):
        raise ConfigError(f"{source}={level!r} is not a log level. Use DEBUG, INFO, WARNING, ERROR or CRITICAL.")
    return name
