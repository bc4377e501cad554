"""Enums and option objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate._names import attach

if TYPE_CHECKING:
    from drivetrain.config.enums import *  # noqa: F403
    from drivetrain.config.handlers import *  # noqa: F403


def get_module_class_from_name(module: Any, name: str) -> type | None:
    """The class called ``name`` of ``module`` (a `torch.nn.Module`) or of a module inside it; None if there is none."""
    return next((type(inner) for inner in module.modules() if type(inner).__name__ == name), None)


__getattr__, __dir__ = attach(__name__)
