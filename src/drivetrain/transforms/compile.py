"""`torch.compile` on a prepared model, and the way back to the module inside."""

from __future__ import annotations

import sys

import torch
from torch import nn

from drivetrain.config.handlers import TorchDynamoPlugin
from drivetrain.core.errors import ConfigError


def is_compiled(model: nn.Module) -> bool:
    """Whether ``model`` is what `torch.compile` returns. Imports nothing: before the first compile nothing can be."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return eval_frame is not None and isinstance(model, eval_frame.OptimizedModule)


def compile_model(model: nn.Module, options: TorchDynamoPlugin) -> nn.Module:
    """``model`` compiled as ``options`` say; one that is compiled already comes back as it is.

    Raises:
        ConfigError: regional compilation is asked for, which comes with the sharded strategies.
    """
    if is_compiled(model) or not options.active:
        return model
    if options.use_regional_compilation:
        raise ConfigError(
            "use_regional_compilation is not available in this version. Leave it out: the whole model is compiled."
        )
    return torch.compile(model, **options.to_kwargs())  # type: ignore[return-value]


def original(model: nn.Module) -> nn.Module:
    """The module inside a compiled one; any other module is its own original."""
    return model._orig_mod if is_compiled(model) else model  # type: ignore[return-value]


def around(compiled: nn.Module, inner: nn.Module) -> nn.Module:
    """``inner``, compiled the way ``compiled`` was."""
    if original(compiled) is inner:
        return compiled
    from torch._dynamo.eval_frame import OptimizedModule

    return OptimizedModule(inner, compiled.dynamo_ctx)  # type: ignore[arg-type]
