"""Logging that knows its rank."""

from __future__ import annotations

import os

from drivetrain.runtime import log
from drivetrain.runtime.log import MultiProcessAdapter as MultiProcessAdapter

from accelerate._names import attach


def get_logger(name: str, log_level: str | int | None = None) -> MultiProcessAdapter:
    """The logger called ``name``, which speaks on the main process only unless a call says otherwise.

    Its level is ``log_level``, else the variable ``ACCELERATE_LOG_LEVEL`` (else ``DRIVETRAIN_LOG_LEVEL``), else it is
    left alone. No Accelerator has to exist.

    Raises:
        ConfigError: the level is not one that `logging` knows.
    """
    return log.get_logger(name, log_level if log_level is not None else os.environ.get("ACCELERATE_LOG_LEVEL") or None)


__getattr__, __dir__ = attach(__name__)
