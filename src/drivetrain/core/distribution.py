"""Are the files that Python imports under another project's name ours alone? Asked once, at import, by two listings."""

from __future__ import annotations

import os
import sys

MARK = "+drivetrain"
"""What the versions of our distributions carry, and no other one's does."""
_KINDS = (".dist-info", ".egg-info")


def refuse_others(name: str, package_file: str, path: list[str] | None = None) -> None:
    """Refuse to run beside another distribution that is called ``name``.

    Its metadata, its commands and its files would be mixed with ours, and which of them answers would depend on the
    order of installation. Looked at are the folder that holds our package, and the first folder on ``path`` that says
    which distribution is installed.

    Args:
        name: of the distribution, and of its top package.
        package_file: ``__file__`` of a module in it.
        path: folders that Python imports from. None: ``sys.path``.

    Raises:
        ImportError: there is one; both places and the commands that end it are named.
    """
    inside = os.path.abspath(package_file).split(os.sep)
    ours = os.sep.join(inside[: len(inside) - inside[::-1].index(name)])
    foreign = _foreign(name, os.path.dirname(ours)) or _first_installed(name, sys.path if path is None else path)
    if foreign is not None:
        raise ImportError(
            f"two distributions called `{name}` are in this environment: the files imported here are drivetrain's, "
            f"in {ours}, but {foreign} belongs to another one. Mixed, neither can be relied on. Remove both and "
            "install the one you want:\n"
            f"    python -m pip uninstall -y {name}   # again, until pip says that it is not installed\n"
            f"    python -m pip install PATH_TO_DRIVETRAIN/dropin/{name}",
            name=name,
            path=ours,
        )


def _first_installed(name: str, path: list[str]) -> str | None:
    """The metadata of another distribution, where that is what Python finds first."""
    for folder in path:
        if not folder.rstrip(os.sep).endswith("-packages"):  # only there do installers write metadata
            continue
        found = _metadata(name, folder)
        if found:
            return _foreign(name, folder)
    return None


def _foreign(name: str, folder: str) -> str | None:
    return next((os.path.join(folder, one) for one in _metadata(name, folder) if MARK not in one), None)


def _metadata(name: str, folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(n for n in names if n.startswith(f"{name}-") and n.endswith(_KINDS))
