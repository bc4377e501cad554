"""The object the user holds. It delegates; it never asks which strategy or platform it has."""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar

from torch.utils.hooks import RemovableHandle

from drivetrain.accelerator.collectives import Collectives
from drivetrain.accelerator.loop import TrainingLoop
from drivetrain.accelerator.output import Output
from drivetrain.accelerator.preparation import Preparation
from drivetrain.accelerator.processes import Processes
from drivetrain.accelerator.tracking import Tracking
from drivetrain.config.enums import DynamoBackend, PrecisionType, RNGType
from drivetrain.config.handlers import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
    sort_handlers,
)
from drivetrain.config.resolve import Settings, in_process
from drivetrain.core.errors import ConfigError
from drivetrain.launch.cuda_start import FIRST_CALL
from drivetrain.runtime.accumulation import Accumulation
from drivetrain.runtime.log import Once
from drivetrain.session import Session, World, open_session, open_world
from drivetrain.tracking.base import Tracker, TrackerHub
from drivetrain.training.scheduler import Unit

FIRST_CALL.watch()  # torch is there now, and a function may be launched later


class _NotSaid(int):
    """A number that was not given: equal to the default, and yet told apart from the same number given in code."""


_ONE = _NotSaid(1)
_UNUSED = object()


class Accelerator(Preparation, TrainingLoop, Collectives, Processes, Output, Tracking):
    """Makes a plain PyTorch loop run on one device or many.

        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for x, y in loader:
            accelerator.backward(loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()

    Each Accelerator keeps its own settings; the processes of the run are shared by all of them.
    """

    _contract_names: ClassVar[bool] = False
    """Whether the variables of the drop-in's contract (``ACCELERATE_*``) are read."""
    _default_unit: ClassVar[Unit] = "optimizer_step"
    _tracker_classes: ClassVar[Mapping[str, type[Tracker]]] = {}

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: Any = _UNUSED,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = _ONE,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: list[str | RNGType] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: DynamoBackend | str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: Any = None,
        *,
        schedule_unit: Unit | None = None,
        keep_low_precision_outputs: bool | None = None,
        collective_timeout: float | None = None,
    ) -> None:
        """What is not given here comes from the launcher or the environment, and else is the default.

        Args:
            device_placement: whether models, optimizer states and batches are moved to the device.
            split_batches: the same as in `DataLoaderConfiguration`, for scripts that give it here.
            mixed_precision: ``no``, ``fp16`` or ``bf16``. One that cannot run here is an error.
            gradient_accumulation_steps: micro-batches per optimizer step, per rank.
            cpu: whether to compute on the processor even where there is something faster.
            dataloader_config: how loaders are shared between the ranks.
            rng_types: random states that ranks share at the start of an epoch. None: the sampler's generator.
            log_with: trackers, by name, type or as instances; or "all" that are installed.
            project_dir: folder for what the run writes.
            project_config: the same in full.
            gradient_accumulation_plugin: accumulation in full.
            step_scheduler_with_optimizer: whether schedules move only when the optimizer has moved.
            kwargs_handlers: options for objects that are built here (DDP, process group, scaler, autocast, profiler).
            dynamo_backend: backend of ``torch.compile``, for models to be compiled with.
            dynamo_plugin: compilation in full.
            schedule_unit: "optimizer_step" (a step of a schedule per optimizer step) or "process" (one for each rank).
            keep_low_precision_outputs: whether model outputs stay in fp16 or bf16 instead of float32.
            collective_timeout: seconds that a collective waits for the other ranks before all end with a report.

        Raises:
            ConfigError: a setting is unknown, contradicts another one, or cannot run here.
        """
        self.accumulation = _accumulation(gradient_accumulation_steps, gradient_accumulation_plugin)
        self.settings = in_process(
            {
                "mixed_precision": None if mixed_precision is None else _precision(mixed_precision),
                "gradient_accumulation_steps": self.accumulation.steps if self.accumulation.steps != 0 else None,
                "cpu": True if cpu else None,
                "schedule_unit": schedule_unit,
                "keep_low_precision_outputs": keep_low_precision_outputs,
                "collective_timeout": collective_timeout,
            },
            contract_names=self._contract_names,
        )
        self.accumulation.steps = self.settings["gradient_accumulation_steps"] or 1
        if collective_timeout is not None and collective_timeout <= 0:
            raise ConfigError(f"collective_timeout={collective_timeout!r}: give the seconds to wait, more than 0.")
        _refuse_later_strategies(
            self.settings,
            deepspeed=deepspeed_plugin or deepspeed_plugins,
            fsdp=fsdp_plugin,
            tp=torch_tp_plugin,
            megatron_lm=megatron_lm_plugin,
            parallelism=parallelism_config,
        )
        handlers: dict[Any, Any] = sort_handlers(kwargs_handlers)
        self.ddp_handler: DistributedDataParallelKwargs | None = handlers.get(DistributedDataParallelKwargs)
        self.scaler_handler: GradScalerKwargs | None = handlers.get(GradScalerKwargs)
        self.init_handler: InitProcessGroupKwargs | None = handlers.get(InitProcessGroupKwargs)
        self.autocast_handler: AutocastKwargs | None = handlers.get(AutocastKwargs)
        self.profile_handler: ProfileKwargs | None = handlers.get(ProfileKwargs)
        self.dynamo_plugin = _dynamo(dynamo_backend, dynamo_plugin, self.settings)
        self.session = self._open_session(self._open_world())
        self.accumulation.alone = not self.use_distributed
        self.schedule_unit: Unit = self.settings["schedule_unit"] or self._default_unit
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.dataloader_config = _loaders(dataloader_config, split_batches)
        self.rng_types = list(rng_types) if rng_types is not None else [RNGType.GENERATOR]
        self.project_configuration = copy.copy(project_config) if project_config else ProjectConfiguration()
        if project_dir is not None and self.project_configuration.project_dir is None:
            self.project_configuration.set_directories(os.fspath(project_dir))
        self._hub = TrackerHub(log_with, self.logging_dir, is_main=self.is_main_process, extra=self._tracker_classes)
        self._once = Once()
        self._triggered = False
        self._models, self._optimizers, self._schedulers = [], [], []
        self._dataloaders, self._custom_objects = [], []
        self._save_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()  # the handles hold it weakly
        self._load_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()

    def _open_world(self) -> World:
        return open_world(
            cpu=self.settings["cpu"],
            device=self.settings["torch_device"],
            group=self.init_handler,
            collective_timeout=self.settings["collective_timeout"],
        )

    def _open_session(self, world: World) -> Session:
        return open_session(
            world,
            mixed_precision=self.settings["mixed_precision"],
            keep_low_precision_outputs=self.settings["keep_low_precision_outputs"],
            autocast=self.autocast_handler,
            ddp=self.ddp_handler,
            scaler=self.scaler_handler,
        )

    # -- settings ------------------------------------------------------------------------------------------------

    @property
    def mixed_precision(self) -> str:
        """``no``, ``fp16`` or ``bf16``."""
        return self.session.precision.name

    @property
    def native_amp(self) -> bool:
        """Whether forward passes run under autocast."""
        return self.session.precision.mixed

    @property
    def scaler(self) -> Any:
        """The loss scaler of fp16, or None."""
        return self.session.strategy.scaler

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 reads for all. None: for iterable data sets only."""
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether the end of the data is padded so that ranks have equally many batches."""
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether shuffled loaders use a sampler seeded by the epoch."""
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting."""
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether loaders keep a state of their own."""
        return self.dataloader_config.use_stateful_dataloader

    # -- registration --------------------------------------------------------------------------------------------

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Let checkpoints hold the state of ``objects``, which have ``state_dict`` and ``load_state_dict``.

        Raises:
            ConfigError: naming every object that lacks them.
        """
        wrong = [
            f"item at index {i}, `{type(item).__name__}`"
            for i, item in enumerate(objects)
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict"))
        ]
        if wrong:
            raise ConfigError(
                f"only objects with `state_dict` and `load_state_dict` can be registered, which these lack: "
                f"{', '.join(wrong)}."
            )
        self._custom_objects.extend(objects)

    def register_save_state_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(models, weights, output_dir)`` before a checkpoint is written. Returns a handle to remove it."""
        return _add(self._save_hooks, hook)

    def register_load_state_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(models, input_dir)`` before a checkpoint is loaded. Returns a handle to remove it."""
        return _add(self._load_hooks, hook)

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        return self  # models that keep a reference to it can be copied; the run cannot

    def __repr__(self) -> str:
        topology = self.session.world.topology
        return (
            f"{type(self).__name__}(rank {topology.rank} of {topology.world_size} on {topology.device}, "
            f"{self.session.strategy.name}, mixed_precision={self.mixed_precision!r}, "
            f"gradient_accumulation_steps={self.gradient_accumulation_steps})"
        )


def _add(hooks: OrderedDict[int, Callable[..., Any]], hook: Callable[..., Any]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _precision(name: PrecisionType | str) -> str:
    name = str(name).lower()
    if name not in PrecisionType:
        raise ConfigError(f"mixed_precision={name!r} is unknown. Choices: {PrecisionType.list()}.")
    return name


def _accumulation(steps: int, plugin: GradientAccumulationPlugin | None) -> Accumulation:
    """The windows that code asks for; 0 steps: code does not say."""
    if plugin is None:
        if not isinstance(steps, Integral) or steps < 1:
            raise ConfigError(f"gradient_accumulation_steps={steps!r}: a window has at least one micro-batch.")
        return Accumulation(0 if isinstance(steps, _NotSaid) else int(steps))
    if not isinstance(steps, _NotSaid) and steps != 1:
        raise ConfigError(
            "gradient_accumulation_steps and gradient_accumulation_plugin both say how many micro-batches make a step. "
            "Give one of them."
        )
    return Accumulation(
        plugin.num_steps or 0, sync_with_dataloader=plugin.sync_with_dataloader, sync_each_batch=plugin.sync_each_batch
    )


def _loaders(config: DataLoaderConfiguration | None, split_batches: Any) -> DataLoaderConfiguration:
    if split_batches is _UNUSED:
        return copy.copy(config) if config else DataLoaderConfiguration()
    if config is not None:
        raise ConfigError(
            "split_batches and dataloader_config both say how batches are shared. Give dataloader_config."
        )
    return DataLoaderConfiguration(split_batches=split_batches)


def _dynamo(
    backend: DynamoBackend | str | None, plugin: TorchDynamoPlugin | None, settings: Settings
) -> TorchDynamoPlugin:
    if backend is not None and plugin is not None:
        raise ConfigError("dynamo_backend and dynamo_plugin both say how to compile. Give one of them.")
    given = plugin or TorchDynamoPlugin(backend=None if backend is None else str(backend))
    if given.backend is None and settings["dynamo_backend"] in (None, "no"):
        return given
    said = {
        "backend": settings["dynamo_backend"],
        "mode": settings["dynamo_mode"],
        "fullgraph": settings["dynamo_use_fullgraph"],
        "dynamic": settings["dynamo_use_dynamic"] or None,
        "use_regional_compilation": settings["dynamo_use_regional_compilation"],
    }
    return replace(given, **{name: value for name, value in said.items() if getattr(given, name) is None})


def _refuse_later_strategies(settings: Settings, **plugins: Any) -> None:
    """A strategy that is not there is an error: running something else would train another way, without a word."""
    switches = {
        "use_fsdp": "FSDP",
        "use_deepspeed": "DeepSpeed",
        "use_megatron_lm": "Megatron-LM",
        "use_parallelism_config": "n-d parallelism",
    }
    asked = [f"{name}_plugin" for name, plugin in plugins.items() if plugin is not None]
    asked += [f"{name} ({settings.source(name)})" for name in switches if settings[name]]
    if asked:
        raise ConfigError(
            f"{', '.join(asked)}: this version trains on a single device and data parallel only. Leave it out, or wait "
            "for the version that has that strategy."
        )


__all__ = ["Accelerator"]
