"""Drivetrain under the import path that existing scripts use. Names are imported when they are first used."""

from accelerate import _installed
from accelerate._names import attach, public_names

_installed.check(__file__)

__version__ = "1.15.0"
"""The level of the API, for those who compare it. The distribution is 1.15.0+drivetrain."""
__all__ = [*public_names("accelerate"), "__version__"]  # noqa: PLE0604 - the names are text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from drivetrain.config.enums import DDPCommunicationHookType as DDPCommunicationHookType
    from drivetrain.config.enums import DistributedType as DistributedType
    from drivetrain.config.handlers import AutocastKwargs as AutocastKwargs
    from drivetrain.config.handlers import DataLoaderConfiguration as DataLoaderConfiguration
    from drivetrain.config.handlers import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from drivetrain.config.handlers import GradScalerKwargs as GradScalerKwargs
    from drivetrain.config.handlers import InitProcessGroupKwargs as InitProcessGroupKwargs
    from drivetrain.config.handlers import ProfileKwargs as ProfileKwargs
    from drivetrain.data.skip import skip_first_batches as skip_first_batches
    from drivetrain.launch.functions import debug_launcher as debug_launcher
    from drivetrain.launch.functions import notebook_launcher as notebook_launcher
    from drivetrain.training.oom import find_executable_batch_size as find_executable_batch_size

    from accelerate.accelerator import Accelerator as Accelerator
    from accelerate.state import PartialState as PartialState
    from accelerate.utils.imports import is_rich_available as is_rich_available
    from accelerate.utils.random import synchronize_rng_states as synchronize_rng_states

__getattr__, __dir__ = attach(__name__)
