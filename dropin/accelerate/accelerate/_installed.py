"""Are the files that Python imports as `accelerate` ours alone? Asked once, at import, by looking at two folders."""

from __future__ import annotations

import os
import sys

MARK = "+drivetrain"
"""What the version of our distribution carries, and no other one's does."""
_KINDS = (".dist-info", ".egg-info")


def check(package_file: str, path: list[str] | None = None) -> None:
    """Refuse to run beside another distribution that is called accelerate.

    Its metadata, its commands and its files would be mixed with ours, and which of them answers would depend on the
    order of installation. Looked at are the folder that holds our package, and the first folder on ``path`` that says
    which distribution is installed.

    Args:
        package_file: ``__file__`` of the package.
        path: folders that Python imports from. None: ``sys.path``.

    Raises:
        ImportError: there is one; both places and the commands that end it are named.
    """
    ours = os.path.dirname(os.path.abspath(package_file))
    foreign = _foreign(os.path.dirname(ours)) or _first_installed(sys.path if path is None else path)
    if foreign is not None:
        raise ImportError(
            "two distributions called `accelerate` are in this environment: the files imported here are drivetrain's, "
            f"in {ours}, but {foreign} belongs to another one. Mixed, neither can be relied on. Remove both and "
            "install the one you want:\n"
            "    python -m pip uninstall -y accelerate   # again, until pip says that it is not installed\n"
            "    python -m pip install PATH_TO_DRIVETRAIN/dropin/accelerate",
            name="accelerate",
            path=ours,
        )


def _first_installed(path: list[str]) -> str | None:
    """The metadata of another distribution, where that is what Python finds first."""
    for folder in path:
        if not folder.rstrip(os.sep).endswith("-packages"):  # only there do installers write metadata
            continue
        found = _metadata(folder)
        if found:
            return _foreign(folder)
    return None


def _foreign(folder: str) -> str | None:
    return next((os.path.join(folder, name) for name in _metadata(folder) if MARK not in name), None)


def _metadata(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(n for n in names if n.startswith("accelerate-") and n.endswith(_KINDS))
