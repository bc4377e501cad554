"""Loss scaling for fp16, with what torch's scaler leaves open: who skipped, and several optimizers at one scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState


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
        """
        if not self.is_enabled():
            return True, optimizer.step(closure)
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        self._due = True
        if _any_infinite(state["found_inf_per_device"]):
            state["stage"] = OptState.STEPPED
            return False, None
        return True, self.step(optimizer) if closure is None else self._step_with(optimizer, closure)

    def _step_with(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.STEPPED
        return optimizer.step(closure)

    def settle(self) -> None:
        """Move the scale for the steps since it last moved, if there were any."""
        if self._due:
            self._due = False
            self.update()

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
        return True, optimizer.step(closure)
    state = scaler._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
    finite = not _any_infinite(state["found_inf_per_device"])
    out = scaler.step(optimizer) if finite else None
    scaler.update()
    return finite, out


def _any_infinite(found: dict[torch.device, torch.Tensor]) -> bool:
    return any(bool(flag) for flag in found.values())
