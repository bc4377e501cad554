"""Data parallel on `torch.nn.parallel.DistributedDataParallel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from drivetrain.precision import autocast
from drivetrain.runtime import shutdown
from drivetrain.strategies.base import Bundle, Strategy


class Ddp(Strategy):
    """Replicas that average their gradients. Models without trainable parameters are left unwrapped."""

    name = "ddp"

    def prepare(self, bundle: Bundle) -> None:
        """Place each model, apply the precision, and wrap those that train; a wrapper that is there already is kept."""
        device = self.context.topology.device
        for i, given in enumerate(bundle.models):
            model = self.unwrap(given)
            autocast.apply(model, self.context.precision, device.type)
            if bundle.placed[i]:
                model.to(device)
            if given is not model:
                shutdown.before_groups_end(given, _let_go)
            elif bundle.trained[i] and any(p.requires_grad for p in model.parameters()):
                bundle.models[i] = self._wrap(model, device)

    def _wrap(self, model: nn.Module, device: torch.device) -> DistributedDataParallel:
        options = self.context.ddp_options
        devices = self.context.platform.ddp_devices(device)
        wrapped = DistributedDataParallel(
            model,
            device_ids=devices,
            output_device=devices[0] if devices else None,
            **(options.to_kwargs() if options else {}),
        )
        if options is not None:
            options.register_comm_hook(wrapped)
        shutdown.before_groups_end(wrapped, _let_go)
        return wrapped

    def backward(self, loss: Tensor, *, divisor: Any, sync: bool, **kwargs: Any) -> None:
        """See `Strategy.backward`. A rank that stays away from the gradients' reduction is named."""
        try:
            super().backward(loss, divisor=divisor, sync=sync, **kwargs)
        except RuntimeError as error:
            explained = self.context.comm.explain(error)
            if explained is error:
                raise
            raise explained from error

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Gradients stay on this rank while it is entered."""
        return model.no_sync() if hasattr(model, "no_sync") else nullcontext()  # type: ignore[operator]

    def unwrap(self, model: nn.Module) -> nn.Module:
        """See `Strategy.unwrap`."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def join(self, parts: Sequence[Any]) -> AbstractContextManager[Any]:
        """Ranks that have run out of batches answer the collectives of those that have not."""
        joinable = [part for part in parts if isinstance(part, Joinable)]
        return Join(joinable) if joinable else nullcontext()  # type: ignore[arg-type]

    @contextmanager
    def _reducing(self, model: DistributedDataParallel) -> Iterator[None]:
        before = model.require_backward_grad_sync, model.require_forward_param_sync
        model.require_backward_grad_sync = model.require_forward_param_sync = True
        model.reducer.prepare_for_backward([])  # what forward would have done outside of no_sync
        try:
            yield
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = before

    def trigger_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """See `Strategy.trigger_sync`."""
        return self._reducing(model) if isinstance(model, DistributedDataParallel) else nullcontext()


def _let_go(model: DistributedDataParallel) -> None:
    """Take from a wrapped model what holds the process group, before the group ends.

    A group that is still held when it ends deadlocks in its destructor later on, which joins threads while it holds
    the interpreter's lock. Users keep their model in a variable to the end, so the model has to let go.
    """
    for name in ("reducer", "logger", "process_group"):
        vars(model).pop(name, None)
