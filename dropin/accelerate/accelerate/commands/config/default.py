"""The config file of this machine, written without questions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from accelerate._names import attach
from accelerate.commands.config.config_args import default_json_config_file
from drivetrain.config import files
from drivetrain.config.enums import PrecisionType
from drivetrain.core.errors import ConfigError
from drivetrain.launch import devices


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
    found = devices.visible(dict(os.environ))
    several = found.count > 1
    kind = {"cuda": "GPU", "rocm": "GPU"}.get(found.kind, found.kind.upper())
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": f"MULTI_{kind}" if several else "NO",
        "downcast_bf16": False,
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": mixed_precision.lower(),
        "num_machines": 1,
        "num_processes": max(1, found.count),
        "rdzv_backend": "static",
        "same_network": False,
        "tpu_use_cluster": False,
        "tpu_use_sudo": False,
        "use_cpu": found.count == 0,
    }
    files.write_document(document, str(path))
    return path


__getattr__, __dir__ = attach(__name__)
