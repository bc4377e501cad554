"""Run a model's forward pass under autocast, and give its outputs back in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from drivetrain.core.tree import map_leaves
from drivetrain.precision.policy import PrecisionPolicy

_HALVES = (torch.float16, torch.bfloat16)
ORIGINAL = "_original_forward"
"""Attribute of a model that holds its own forward; other libraries look for it under this name."""


def convert_to_fp32(data: Any) -> Any:
    """``data`` with every fp16 and bf16 tensor, at any depth, as float32; all else as it is."""
    return map_leaves(lambda x: x.float(), data, leaf=_is_half)


def _is_half(x: Any) -> bool:
    return getattr(x, "dtype", None) in _HALVES and hasattr(x, "float")


def autocast(policy: PrecisionPolicy, device_type: str) -> torch.autocast:
    """The autocast context of a policy that has a compute dtype."""
    return torch.autocast(
        device_type,
        dtype=policy.compute_dtype,
        cache_enabled=policy.cache_enabled,
        enabled=policy.autocast_enabled,
    )


class AutocastForward:
    """Stands in for ``model.forward``. An object, not a closure, so that the model can be copied and pickled."""

    def __init__(self, forward: Callable[..., Any], policy: PrecisionPolicy, device_type: str) -> None:
        functools.update_wrapper(self, forward)  # the signature stays readable: trainers pick columns by it
        self.forward, self.policy, self.device_type = forward, policy, device_type

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the forward pass; half-precision tensors as float32 unless the policy keeps them."""
        with autocast(self.policy, self.device_type):
            out = self.forward(*args, **kwargs)
        return out if self.policy.keep_low_precision_outputs else convert_to_fp32(out)


def apply(model: nn.Module, policy: PrecisionPolicy, device_type: str) -> None:
    """Run ``model.forward`` under the policy from now on, and under no other that was applied before. In place."""
    forward = model.__dict__.get("forward")
    if isinstance(forward, AutocastForward) and (forward.policy, forward.device_type) != (policy, device_type):
        remove(model)
    if policy.mixed and ORIGINAL not in model.__dict__:
        original = model.forward
        model.__dict__[ORIGINAL] = original
        model.__dict__["forward"] = AutocastForward(original, policy, device_type)


def remove(model: nn.Module) -> None:
    """Undo `apply`: the model computes in its own dtypes again. In place."""
    original = model.__dict__.pop(ORIGINAL, None)
    if original is None:
        return
    model.__dict__.pop("forward", None)
    if getattr(original, "__self__", None) is not model or original.__name__ != "forward":
        model.__dict__["forward"] = original  # the user had put a function of their own there
