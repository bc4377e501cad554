"""Loss scaling for fp16, with what torch's scaler leaves open: who skipped, and several optimizers at one scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from drivetrain.core.errors import UsageError


class LossScaler(GradScaler):
    """`torch.amp.GradScaler` for a loop whose optimizers step one after the other.

    The scale moves once an iteration: not at each optimizer's step, which would unscale the second optimizer's
    gradients by a scale they were not made with, but when the next loss is scaled (or the scale is read).
    """

    def __init__(self, device: str, **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
        self._due = False

    def step_if_finite(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None
    ) -> tuple[bool, Any]:
        """Unscale, and step if no gradient is infinite or NaN. Returns whether it stepped, and what the step returned.

        Fused optimizers would look at the gradients themselves, inside the kernel, and tell nobody; their hooks would
        fire for a step that did not happen. So the look is taken here for all.

        Raises:
            UsageError: there is a closure, which would make gradients inside the step, where nobody unscales them.
        """
        if not self.is_enabled():
            return True, optimizer.step() if closure is None else optimizer.step(closure)
        _refuse_closure(optimizer, closure)
        if not _has_gradients(optimizer):
            return True, optimizer.step()
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        self._due = True
        if _any_infinite(state["found_inf_per_device"]):
            state["stage"] = OptState.STEPPED
            return False, None
        return True, self.step(optimizer)

    def cleared(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients of ``optimizer`` are gone. If they were unscaled and not stepped, the next ones start anew."""
        state = self._per_optimizer_states.get(id(optimizer)) if self.is_enabled() else None
        if state is not None and state["stage"] is OptState.UNSCALED:
            self._due = True

    def settle(self) -> None:
        """Move the scale for the steps since it last moved, if there were any."""
        if self._due:
            self.update()

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """See `torch.amp.GradScaler.update`."""
        self._due = False
        super().update(new_scale)

    def scale(self, outputs: Any) -> Any:
        """See `torch.amp.GradScaler.scale`. A new iteration starts here."""
        self.settle()
        return super().scale(outputs)

    def get_scale(self) -> float:
        """The scale of the next loss."""
        self.settle()
        return super().get_scale()

    def state_dict(self) -> dict[str, Any]:
        """See `torch.amp.GradScaler.state_dict`."""
        self.settle()
        return super().state_dict()


def step(scaler: GradScaler, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> tuple[bool, Any]:
    """Step through any scaler. Returns whether it stepped, and what the step returned."""
    if isinstance(scaler, LossScaler):
        return scaler.step_if_finite(optimizer, closure)
    # A scaler of the user's own: its owner expects it to have been updated when the step returns.
    if not scaler.is_enabled():
        return True, optimizer.step() if closure is None else optimizer.step(closure)
    _refuse_closure(optimizer, closure)
    state = scaler._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
    finite = not _any_infinite(state["found_inf_per_device"])
    out = scaler.step(optimizer) if finite else None
    scaler.update()
    return finite, out


def _refuse_closure(optimizer: torch.optim.Optimizer, closure: Any) -> None:
    if closure is not None:
        raise UsageError(
            f"{type(optimizer).__name__}.step(closure) computes gradients inside the step, and fp16 has to unscale "
            "them before it. Call backward() and then step() without a closure, or use bf16."
        )


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _any_infinite(found: dict[torch.device, torch.Tensor]) -> bool:
    return any(bool(flag) for flag in found.values())
