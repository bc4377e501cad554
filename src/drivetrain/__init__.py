"""Drivetrain: a plain PyTorch loop, on whatever hardware it runs.

Names are imported when they are first used, so `import drivetrain` (and the launcher) costs no import of torch.
"""

__version__ = "0.1.0"

_HOME = {
    "Accelerator": "accelerator",
    "AutocastKwargs": "config.handlers",
    "ConfigError": "core.errors",
    "CollectiveError": "core.errors",
    "DDPCommunicationHookType": "config.enums",
    "DataLoaderConfiguration": "config.handlers",
    "DistributedDataParallelKwargs": "config.handlers",
    "DistributedType": "config.enums",
    "DrivetrainError": "core.errors",
    "GradScalerKwargs": "config.handlers",
    "GradientAccumulationPlugin": "config.handlers",
    "InitProcessGroupKwargs": "config.handlers",
    "InputError": "core.errors",
    "LaunchError": "core.errors",
    "LoggerType": "config.enums",
    "MissingDependency": "core.errors",
    "PrecisionType": "config.enums",
    "ProfileKwargs": "config.handlers",
    "ProjectConfiguration": "config.handlers",
    "TorchDynamoPlugin": "config.handlers",
    "Tracker": "tracking.base",
    "UsageError": "core.errors",
    "debug_launcher": "launch.functions",
    "get_logger": "runtime.log",
    "notebook_launcher": "launch.functions",
    "send_to_device": "data.placement",
    "set_seed": "training.rng",
    "skip_first_batches": "data.skip",
    "tqdm": "runtime.progress",
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 - the names are text

# ruff: noqa: F401 - for type checkers and editors; at run time `__getattr__` gives these names
TYPE_CHECKING = False
if TYPE_CHECKING:
    from drivetrain.accelerator import Accelerator
    from drivetrain.config.enums import DDPCommunicationHookType, DistributedType, LoggerType, PrecisionType
    from drivetrain.config.handlers import (
        AutocastKwargs,
        DataLoaderConfiguration,
        DistributedDataParallelKwargs,
        GradientAccumulationPlugin,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        ProfileKwargs,
        ProjectConfiguration,
        TorchDynamoPlugin,
    )
    from drivetrain.core.errors import (
        CollectiveError,
        ConfigError,
        DrivetrainError,
        InputError,
        LaunchError,
        MissingDependency,
        UsageError,
    )
    from drivetrain.data.placement import send_to_device
    from drivetrain.data.skip import skip_first_batches
    from drivetrain.launch.functions import debug_launcher, notebook_launcher
    from drivetrain.runtime.log import get_logger
    from drivetrain.runtime.progress import tqdm
    from drivetrain.tracking.base import Tracker
    from drivetrain.training.rng import set_seed


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'drivetrain' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"drivetrain.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
