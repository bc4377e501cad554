"""Comparing versions."""

from __future__ import annotations

from importlib import metadata

from drivetrain.core.errors import ConfigError
from packaging.version import Version, parse

from accelerate.utils.constants import STR_OPERATION_TO_FUNC

torch_version = parse(metadata.version("torch"))


def compare_versions(library_or_version: str | Version, operation: str, requirement_version: str) -> bool:
    """Whether the version of a library (by its name, as installed), or a version itself, fits ``requirement_version``.

    Args:
        operation: one of ``>``, ``>=``, ``==``, ``!=``, ``<=``, ``<``.

    Raises:
        ConfigError: the operation is another one.
    """
    if operation not in STR_OPERATION_TO_FUNC:
        raise ConfigError(f"operation={operation!r} compares no versions. Use one of {list(STR_OPERATION_TO_FUNC)}.")
    version = library_or_version
    if isinstance(version, str):
        version = parse(metadata.version(version))
    return STR_OPERATION_TO_FUNC[operation](version, parse(requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Whether the version of torch fits ``version``; see `compare_versions`."""
    return compare_versions(torch_version, operation, version)
