"""Precision as data: what a run computes in. Strategies apply it, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drivetrain.config.enums import PrecisionType
from drivetrain.core.errors import ConfigError
from drivetrain.platforms.base import Platform


@dataclass(frozen=True, kw_only=True)
class PrecisionPolicy:
    """What forward and backward compute in. Parameters keep the dtype the user gave them."""

    name: str = "no"
    """``no``, ``fp16``, ``bf16`` or ``fp8``."""
    compute_dtype: torch.dtype | None = None
    """Dtype of autocast. None: every operation runs in the dtype of its inputs."""
    loss_scaling: bool = False
    keep_low_precision_outputs: bool = False
    """Whether the model's outputs stay in `compute_dtype` instead of being converted to float32."""
    autocast_enabled: bool = True
    cache_enabled: bool | None = None
    """Whether autocast keeps the cast weights. None: torch's default."""

    @property
    def mixed(self) -> bool:
        """Whether autocast is used at all."""
        return self.compute_dtype is not None


def choose(
    name: str,
    platform: Platform,
    *,
    keep_low_precision_outputs: bool = False,
    autocast_enabled: bool = True,
    cache_enabled: bool | None = None,
) -> PrecisionPolicy:
    """The policy called ``name`` on this platform.

    Raises:
        ConfigError: the name is unknown, or the platform cannot compute so. Never full precision without a word.
    """
    name = str(getattr(name, "value", name)).lower()
    if name not in PrecisionType:
        raise ConfigError(f"mixed_precision={name!r} is unknown. Choices: {PrecisionType.list()}.")
    common = {
        "name": name,
        "keep_low_precision_outputs": keep_low_precision_outputs,
        "autocast_enabled": autocast_enabled,
        "cache_enabled": cache_enabled,
    }
    if name == "no":
        return PrecisionPolicy(**common)
    if name == "fp8":
        raise ConfigError(
            "mixed_precision='fp8' is not available in this version on any strategy that is here (single, ddp). "
            "Use 'bf16', or 'no'."
        )
    reason = platform.why_not(name)
    if reason is not None:
        raise ConfigError(
            f"mixed_precision={name!r} cannot run here: {reason}. Use another precision, or another device."
        )
    if name == "fp16" and not platform.scales_loss:
        raise ConfigError(
            f"mixed_precision='fp16' needs a loss scaler, which the platform {platform.name!r} has not. Use 'bf16'."
        )
    dtype = torch.float16 if name == "fp16" else torch.bfloat16
    return PrecisionPolicy(compute_dtype=dtype, loss_scaling=name == "fp16", **common)
