"""One process, one device: place the model, and apply the precision."""

from __future__ import annotations

from drivetrain.precision import autocast
from drivetrain.strategies.base import Bundle, Strategy


class Single(Strategy):
    """Nothing is wrapped: without mixed precision the user's very module comes back."""

    name = "single"

    def prepare(self, bundle: Bundle) -> None:
        """Move each model to the device and let its forward run in the run's precision."""
        device = self.context.topology.device
        for model, placed in zip(bundle.models, bundle.placed, strict=True):
            autocast.apply(model, self.context.precision, device.type)
            if placed:
                model.to(device)
