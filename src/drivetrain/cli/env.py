"""``env``: what to paste into a bug report."""

from __future__ import annotations

import os
import sys

from drivetrain import __version__
from drivetrain.config import environ as env
from drivetrain.config import files
from drivetrain.launch.devices import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

GIB = 1024**3


def command(argv: Sequence[str], prog: str) -> int:
    """Run ``env``: print versions, hardware and the config file.

    Raises:
        ConfigError: the named config file does not exist or cannot be read.
    """
    import argparse

    parser = argparse.ArgumentParser(prog=prog, description="Print versions, hardware and the config file in use.")
    parser.add_argument("--config_file", "--config-file", metavar="PATH", help="Config file instead of the default.")
    parser.add_argument("--profile", metavar="NAME", help="Config file NAME.yaml beside the default one.")
    line = parser.parse_args(argv)
    found = report(line.config_file, line.profile, program=prog.split()[0])
    print("\nCopy and paste the text below into an issue:\n")
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"- {name}:")
            print("\n".join(f"\t- {key}: {item}" for key, item in value.items()))
        else:
            print(f"- {name}: {value}")
    return 0


def report(config_file: str | None = None, profile: str | None = None, program: str = "drivetrain") -> dict[str, Any]:
    """What ``env`` prints, by name. Imports no torch.

    Raises:
        ConfigError: as for `command`.
    """
    import platform
    import shutil

    import psutil

    devices = visible(env.snapshot())
    path = files.chosen_file(config_file, profile)
    found = {
        "`Drivetrain` version": __version__,
        "Platform": platform.platform(),
        f"`{program}` command": shutil.which(program) or "Not found",
        "Python version": platform.python_version(),
        "Python executable": sys.executable,
        "NumPy version": _version("numpy"),
        "PyTorch version": _version("torch"),
        "Accelerators": f"{devices.count} x {devices.kind}" if devices.count else "none",
        "System RAM": f"{psutil.virtual_memory().total / GIB:.2f} GB",
        "CPU cores": os.cpu_count(),
        "Config file": path or "Not found",
    }
    if path is not None:
        found["Config"] = files.read_document(path)
    return found


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "Not found"
