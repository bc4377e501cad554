"""The one way to reach an optional package."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from drivetrain.core.errors import MissingDependency


def installed(module: str) -> bool:
    """Whether ``import module`` would find a package; imports nothing itself."""
    from importlib.util import find_spec

    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def require(requirement: str, *, needed_by: str, module: str | None = None) -> ModuleType:
    """Import the package that satisfies ``requirement`` (PEP 508, such as ``"wandb>=0.16"``).

    Raises:
        MissingDependency: naming the package, who needs it, and the pip command that installs it.
    """
    from importlib import metadata

    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    name = module or wanted.name.replace("-", "_")
    advice = f"Run: pip install '{requirement}'"
    if not installed(name.partition(".")[0]):
        raise MissingDependency(f"{needed_by} needs the package `{requirement}`, which is not installed. {advice}")
    if str(wanted.specifier):
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            found = None  # importable without metadata (a source checkout): its version cannot be judged
        if found is not None and not wanted.specifier.contains(found, prereleases=True):
            raise MissingDependency(f"{needed_by} needs `{requirement}`, but {found} is installed. {advice} -U")
    return importlib.import_module(name)
