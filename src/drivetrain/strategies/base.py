"""What a way of training must say for itself. Only `prepare` has no default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drivetrain.config.enums import DistributedType
from drivetrain.config.handlers import DistributedDataParallelKwargs, GradScalerKwargs
from drivetrain.platforms.base import Platform
from drivetrain.precision import scaler as scaling
from drivetrain.precision.policy import PrecisionPolicy
from drivetrain.precision.scaler import LossScaler
from drivetrain.runtime.comm import Comm
from drivetrain.runtime.topology import Topology


@dataclass(frozen=True, kw_only=True)
class StrategyContext:
    """Everything a strategy may lean on. Handed over once, at construction."""

    topology: Topology
    platform: Platform
    comm: Comm
    precision: PrecisionPolicy
    scaler_options: GradScalerKwargs | None = None
    ddp_options: DistributedDataParallelKwargs | None = None


@dataclass(kw_only=True)
class Bundle:
    """What one `prepare` call was given, by kind. A strategy replaces entries in place."""

    models: list[nn.Module] = field(default_factory=list)
    placed: list[bool] = field(default_factory=list)
    """For each model, whether it is moved to the device."""
    trained: list[bool] = field(default_factory=list)
    """For each model, whether it is wrapped for training; False: it is only evaluated."""
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)


class Strategy(ABC):
    """How models are wrapped and stepped. It opens no files, reads no environment and knows no other strategy."""

    name: ClassVar[str]
    distributed_type: ClassVar[DistributedType | None] = None
    """What a run of this strategy is called. None: it depends on the platform."""

    def __init__(self, context: StrategyContext) -> None:
        self.context = context
        self.scaler = self.make_scaler() if context.precision.loss_scaling else None

    # -- start-up ------------------------------------------------------------------------------------------------

    @classmethod
    def group_backend(cls, platform: Platform) -> str:
        """Backend of the process group, such as ``"cuda:nccl,cpu:gloo"``."""
        return platform.collective_backend

    def make_scaler(self) -> LossScaler | None:
        """The loss scaler of fp16, or None where an engine scales by itself."""
        options = self.context.scaler_options
        return LossScaler(self.context.topology.device.type, **(options.to_kwargs() if options else {}))

    @abstractmethod
    def prepare(self, bundle: Bundle) -> None:
        """Place, convert and wrap everything in ``bundle``, together, in place."""

    # -- one step ------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *, divisor: Any, sync: bool, **kwargs: Any) -> None:
        """Add the gradients of ``loss / divisor`` (0-d; None: of ``loss``). ``sync``: an optimizer step follows."""
        if divisor is not None:
            loss = loss / divisor
        (loss if self.scaler is None else self.scaler.scale(loss)).backward(**kwargs)

    def rescale_gradients(self, parameters: Iterable[Tensor], factor: Any) -> None:
        """Multiply the gradients that have been accumulated so far by ``factor`` (a float or a 0-d tensor)."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        for group in _by_kind(gradients):
            torch._foreach_mul_(group, factor)  # pyright: ignore[reportPrivateImportUsage]

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Entered for micro-batches that do not end a step."""
        return nullcontext()

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> tuple[bool, Any]:
        """Move the parameters. Returns whether they moved (not on overflow), and what the optimizer returned."""
        if self.scaler is None:
            return True, optimizer.step() if closure is None else optimizer.step(closure)
        return scaling.step(self.scaler, optimizer, closure)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the loss scale, once a step."""
        if self.scaler is not None and self.scaler.is_enabled():
            state = self.scaler._per_optimizer_states[id(optimizer)]
            if state["stage"] is scaling.OptState.READY:
                self.scaler.unscale_(optimizer)

    def zeroing(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients of ``optimizer`` are about to be cleared, whether it has stepped or not."""
        if self.scaler is not None:
            self.scaler.cleared(optimizer)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip in place. Returns the total norm before clipping (0-d), over all shards. Gradients are unscaled."""
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        """Clip each element in place. Gradients are unscaled."""
        nn.utils.clip_grad_value_(parameters, clip_value)

    # -- around --------------------------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own module inside what `prepare` returned."""
        return model

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Whole, unsharded weights under the user's own names; on rank 0 at least. Called by all ranks."""
        return self.unwrap(model).state_dict()

    def join(self, parts: Sequence[Any]) -> AbstractContextManager[Any]:
        """Entered when ranks may see unequal numbers of batches. ``parts``: models and optimizers."""
        return nullcontext()

    def trigger_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Entered so that the next backward reduces gradients although forward ran under `no_sync`."""
        return nullcontext()


def _by_kind(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Gradients by device and dtype, as the fused kernels want them."""
    groups: dict[tuple[torch.device, torch.dtype, type], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype, type(gradient)), []).append(gradient)
    return list(groups.values())
