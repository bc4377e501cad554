"""A progress bar that many ranks can share one terminal with."""

from __future__ import annotations

from typing import Any

from drivetrain.config import environ
from drivetrain.core.errors import ConfigError
from drivetrain.core.optional import require


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """`tqdm.auto.tqdm` with the same arguments, drawn by one rank a machine (local rank 0).

    With ``main_process_only=False`` every rank draws its own; give each a ``position``. A ``disable=True`` of the
    caller holds everywhere.

    Raises:
        MissingDependency: tqdm is not installed.
        ConfigError: the first argument is a bool, where the thing to iterate over belongs.
    """
    if args and isinstance(args[0], bool):
        raise ConfigError(
            f"tqdm's first argument is the thing to iterate over, but got {args[0]}. "
            f"Write tqdm(iterable, main_process_only={args[0]})."
        )
    bar = require("tqdm", needed_by="the progress bar", module="tqdm.auto").tqdm
    if main_process_only and environ.process_env().local_rank != 0:
        kwargs["disable"] = True
    return bar(*args, **kwargs)
