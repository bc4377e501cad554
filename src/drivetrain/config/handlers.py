"""Option objects a script hands to the `Accelerator`: the library reads them and never writes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drivetrain.config.enums import DDPCommunicationHookType, DynamoBackend
from drivetrain.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

NCCL_TIMEOUT = timedelta(seconds=600)
GLOO_TIMEOUT = timedelta(seconds=1800)


@dataclass
class KwargsHandler:
    """Keyword arguments for some object that the library builds for the user."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, copied deeply."""
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """The fields whose value differs from the default of the class."""
        default = type(self)()
        return {name: value for name, value in self.to_dict().items() if value != getattr(default, name, None)}


@dataclass
class AutocastKwargs(KwargsHandler):
    """Arguments of ``torch.autocast``."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Arguments of ``torch.nn.parallel.DistributedDataParallel``, and the hook its gradients travel through."""

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    """Size of a gradient bucket in MiB."""
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False

    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: Literal[DDPCommunicationHookType.NO, DDPCommunicationHookType.FP16, DDPCommunicationHookType.BF16] = (
        DDPCommunicationHookType.NO
    )
    comm_state_option: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``PowerSGDState``."""

    def __post_init__(self) -> None:
        for name in ("comm_hook", "comm_wrapper"):
            setattr(self, name, _hook_type(name, getattr(self, name)))
        if self.comm_wrapper not in (
            DDPCommunicationHookType.NO,
            DDPCommunicationHookType.FP16,
            DDPCommunicationHookType.BF16,
        ):
            raise ConfigError(f"comm_wrapper={self.comm_wrapper} cannot wrap another hook. Use no, fp16 or bf16.")

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the DDP constructor: all fields but the three about the hook."""
        return {name: value for name, value in super().to_dict().items() if not name.startswith("comm_")}

    def register_comm_hook(self, model: Any) -> None:
        """Install the chosen hook on ``model``, a `DistributedDataParallel` module."""
        from drivetrain.strategies.ddp.hooks import register

        register(model, self)


def _hook_type(name: str, value: Any) -> DDPCommunicationHookType:
    try:
        return DDPCommunicationHookType(value)
    except ValueError:
        known = ", ".join(DDPCommunicationHookType.list())
        raise ConfigError(f"{name}={value!r} is not a gradient hook. Known: {known}.") from None


@dataclass
class GradScalerKwargs(KwargsHandler):
    """Arguments of the loss scaler that fp16 uses."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    """Steps without overflow before the scale grows."""
    enabled: bool = True


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of ``torch.distributed.init_process_group``."""

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None
    """How long a collective may wait for the other ranks. None: 600 s for nccl, 1800 s for any other backend."""

    def __post_init__(self) -> None:
        self._said_timeout = self.timeout is not None
        if self.timeout is None:
            self.timeout = NCCL_TIMEOUT if self.backend == "nccl" else GLOO_TIMEOUT
        elif not isinstance(self.timeout, timedelta):
            raise ConfigError(
                f"timeout={self.timeout!r} is a {type(self.timeout).__name__}, not a datetime.timedelta. "
                "Write timedelta(seconds=...)."
            )

    def to_dict(self) -> dict[str, Any]:
        """All fields, copied deeply."""
        return {name: value for name, value in super().to_dict().items() if name != "_said_timeout"}

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from the defaults, and the timeout where one was given, be it the default."""
        return super().to_kwargs() | ({"timeout": self.timeout} if self._said_timeout else {})


@dataclass
class ProfileKwargs(KwargsHandler):
    """Arguments of ``torch.profiler.profile``."""

    activities: list[str] | None = None
    """Of ``cpu, cuda, xpu, mtia, hpu``. None: all that the machine has."""
    schedule_option: dict[str, int] | None = None
    """Arguments of ``torch.profiler.schedule``, in steps."""
    on_trace_ready: Callable | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None
    """Folder for one Chrome trace a rank."""

    def build(self) -> torch.profiler.profile:
        """The profiler these options describe, not started yet.

        Raises:
            ConfigError: an activity is unknown, or this torch does not have it.
        """
        from drivetrain.training.profile import build_profiler

        return build_profiler(self)


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How micro-batches make an optimizer step."""

    num_steps: int | None = None
    """Micro-batches per optimizer step, per rank."""
    adjust_scheduler: bool = True
    """Kept for compatibility: a schedule is stepped once per optimizer step whatever this says."""
    sync_with_dataloader: bool = True
    """Whether the end of a loader ends the window; the shorter window is scaled by its own length."""
    sync_each_batch: bool = False
    """Whether gradients are reduced at every micro-batch: more traffic, less memory on sharded models."""

    def __post_init__(self) -> None:
        if self.num_steps is not None and (not isinstance(self.num_steps, int) or self.num_steps < 1):
            raise ConfigError(f"num_steps={self.num_steps!r}: a window has at least one micro-batch. Give 1 or more.")


@dataclass
class DataLoaderConfiguration:
    """How loaders are shared between the ranks."""

    split_batches: bool = False
    """Whether the loader's batch size is that of all ranks together."""
    dispatch_batches: bool | None = None
    """Whether rank 0 reads for all. None: for iterable datasets only."""
    even_batches: bool = True
    """Whether the end is padded, with samples from the start, so that every rank has as many batches."""
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False
    resume_position: bool = True
    """Whether `load_state` restores each loader's position."""


@dataclass
class ProjectConfiguration:
    """Folders of a project."""

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    """Checkpoints kept on disk; None keeps all."""
    iteration: int = 0
    save_on_each_node: bool = False

    def set_directories(self, project_dir: str | Path | None = None) -> None:
        """Set the project folder, and the logging folder where none was given."""
        self.project_dir = None if project_dir is None else str(project_dir)
        if self.logging_dir is None:
            self.logging_dir = self.project_dir

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)


@dataclass
class TensorInformation:
    """What a tensor looks like, without its values."""

    shape: Any
    dtype: Any


HANDLER_TYPES: tuple[type[KwargsHandler], ...] = (
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    AutocastKwargs,
    ProfileKwargs,
)


def sort_handlers(handlers: list[KwargsHandler] | None) -> dict[type[KwargsHandler], KwargsHandler]:
    """The handlers by the class they serve; a subclass of a known handler counts as that handler.

    Raises:
        ConfigError: something is no handler, serves nothing here, or two of them serve the same object.
    """
    found: dict[type[KwargsHandler], KwargsHandler] = {}
    known = ", ".join(kind.__name__ for kind in HANDLER_TYPES)
    if handlers is not None and not isinstance(handlers, list | tuple):
        raise ConfigError(f"kwargs_handlers={handlers!r} is not a list. Write kwargs_handlers=[...].")
    for handler in handlers or []:
        kind = next((k for k in HANDLER_TYPES if isinstance(handler, k)), None)
        if kind is None:
            raise ConfigError(f"kwargs_handlers holds {handler!r}, which is none of: {known}.")
        if kind in found:
            raise ConfigError(f"kwargs_handlers holds two {kind.__name__}. Give one.")
        found[kind] = handler
    return found


def field_names(kind: type) -> list[str]:
    """Names of the fields of an options class, in order."""
    return [f.name for f in fields(kind)]


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """Arguments of ``torch.compile``."""

    backend: DynamoBackend | str | None = None
    """None: not compiled (unless the run's options say so)."""
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool | None = None
    """Whether repeated blocks are compiled one by one, and not the whole model."""

    def __post_init__(self) -> None:
        if isinstance(self.backend, str):
            try:
                self.backend = DynamoBackend(self.backend.upper())
            except ValueError:
                known = ", ".join(name.lower() for name in DynamoBackend.list())
                raise ConfigError(f"dynamo backend {self.backend!r} is unknown. Known: {known}.") from None

    def to_dict(self) -> dict[str, Any]:
        """All fields; the backend as torch wants it, in lower case."""
        out = super().to_dict()
        out["backend"] = None if self.backend is None else str(self.backend).lower()
        return out

    def to_kwargs(self) -> dict[str, Any]:
        """The arguments for ``torch.compile`` that differ from the defaults."""
        out = super().to_kwargs()
        out.pop("use_regional_compilation", None)
        return out

    @property
    def active(self) -> bool:
        """Whether anything is to be compiled."""
        return self.backend is not None and self.backend is not DynamoBackend.NO
