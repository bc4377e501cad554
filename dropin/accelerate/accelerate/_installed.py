"""Are the files that Python imports as `accelerate` ours alone? Asked once, at import."""

from __future__ import annotations

from drivetrain.core.distribution import refuse_others


def check(package_file: str, path: list[str] | None = None) -> None:
    """Refuse to run beside another distribution that is called accelerate; see `refuse_others`.

    Raises:
        ImportError: there is one; both places and the commands that end it are named.
    """
    refuse_others("accelerate", package_file, path)
