"""Gradient compression for DDP: torch's communication hooks by name."""

from __future__ import annotations

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from drivetrain.config.enums import DDPCommunicationHookType as Kind
from drivetrain.config.handlers import DistributedDataParallelKwargs
from drivetrain.core.errors import ConfigError

_HOOKS = {
    Kind.FP16: default_hooks.fp16_compress_hook,
    Kind.BF16: default_hooks.bf16_compress_hook,
    Kind.POWER_SGD: powerSGD_hook.powerSGD_hook,
    Kind.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
}
_WRAPPERS = {Kind.FP16: default_hooks.fp16_compress_wrapper, Kind.BF16: default_hooks.bf16_compress_wrapper}


def register(model: DistributedDataParallel, options: DistributedDataParallelKwargs) -> None:
    """Send the gradients of ``model`` through the hook that ``options`` names; "no" changes nothing.

    Raises:
        ConfigError: torch refuses the hook on this device (bf16 compression needs CUDA or XPU).
    """
    if options.comm_hook is Kind.NO:
        if options.comm_wrapper is not Kind.NO or options.comm_state_option:
            raise ConfigError("comm_wrapper and comm_state_option belong to a hook. Set comm_hook too.")
        return
    hook = _HOOKS[options.comm_hook]
    if options.comm_wrapper is not Kind.NO:
        hook = _WRAPPERS[options.comm_wrapper](hook)  # type: ignore[arg-type]
    state = None
    if options.comm_hook in (Kind.POWER_SGD, Kind.BATCHED_POWER_SGD):
        state = powerSGD_hook.PowerSGDState(None, **options.comm_state_option)
    try:
        model.register_comm_hook(state, hook)
    except TypeError as error:
        raise ConfigError(f"comm_hook={options.comm_hook}: {error} Use fp16 or power_sgd here.") from error
