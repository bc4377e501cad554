"""The config file of this machine, written without questions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from drivetrain.cli.config import basic
from drivetrain.config import files
from drivetrain.config.enums import PrecisionType
from drivetrain.core.errors import ConfigError

from accelerate._names import attach
from accelerate.commands.config.config_args import default_json_config_file


def write_basic_config(
    mixed_precision: str = "no", save_location: str | os.PathLike[str] = default_json_config_file
) -> Path | Literal[False]:
    """Write a config file for all devices of this machine. A file that is there already is left alone.

    Args:
        save_location: the file; YAML unless its name ends in ``.json``.

    Returns the path, or False when the file was there already.

    Raises:
        ConfigError: the precision is unknown.
    """
    path = Path(save_location)
    if path.exists():
        print(f"{path} is there already, and stays as it is. Remove it, or run `accelerate config`.")
        return False
    if mixed_precision.lower() not in PrecisionType:
        raise ConfigError(f"mixed_precision={mixed_precision!r} is unknown. Choices: {PrecisionType.list()}.")
    files.write_document(basic(mixed_precision.lower()), str(path))
    return path


__getattr__, __dir__ = attach(__name__)
