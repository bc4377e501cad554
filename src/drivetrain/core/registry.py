"""Find a plugin by name: a file or folder of ours with that name, else an installed entry point."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

from drivetrain.core.errors import ConfigError


def names(kind: str) -> list[str]:
    """Every known name of a kind (``"strategies"``, ``"platforms"``, ``"tracking"``), sorted; imports none of them."""
    package = importlib.import_module(f"drivetrain.{kind}")
    ours = {m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "base"}
    return sorted(ours | {entry.name for entry in _entry_points(kind)})


def find(kind: str, name: str, base: type) -> type:
    """The subclass of ``base`` that calls itself ``name``.

    Looked for in ``drivetrain/<kind>/<name>.py``, in ``drivetrain/<kind>/<name>/<kind's singular>.py``, then among the
    entry points of the group ``drivetrain.<kind>``.

    Raises:
        ConfigError: nothing has that name; the known names are listed.
    """
    for module_name in _candidates(kind, name):
        module = importlib.import_module(module_name)
        for member in vars(module).values():
            if isinstance(member, type) and issubclass(member, base) and getattr(member, "name", None) == name:
                return member
    for entry in _entry_points(kind):
        if entry.name == name:
            return entry.load()
    raise ConfigError(f"nothing in {kind} is named {name!r}. Known: {', '.join(names(kind))}.")


def _candidates(kind: str, name: str) -> list[str]:
    if not name.isidentifier() or name == "base" or find_spec(f"drivetrain.{kind}.{name}") is None:
        return []
    inner = f"drivetrain.{kind}.{name}.{'strategy' if kind == 'strategies' else kind}"
    spec = find_spec(f"drivetrain.{kind}.{name}")
    is_folder = spec is not None and spec.submodule_search_locations is not None
    return [inner] if is_folder and find_spec(inner) is not None else [f"drivetrain.{kind}.{name}"]


def _entry_points(kind: str) -> list:
    from importlib import metadata

    return list(metadata.entry_points(group=f"drivetrain.{kind}"))
