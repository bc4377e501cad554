"""The part of the `Accelerator` that takes plain objects and gives back those that run on any hardware."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from drivetrain.config.handlers import DataLoaderConfiguration, TorchDynamoPlugin
from drivetrain.config.resolve import Settings
from drivetrain.core.errors import ConfigError, InputError, UsageError
from drivetrain.core.tree import leaves, map_leaves
from drivetrain.data.prepare import prepare_data_loader
from drivetrain.data.skip import skip_first_batches
from drivetrain.runtime.accumulation import Accumulation
from drivetrain.runtime.log import Once, get_logger
from drivetrain.session import Session
from drivetrain.strategies.base import Bundle
from drivetrain.training import rng
from drivetrain.training.optimizer import PreparedOptimizer
from drivetrain.training.scheduler import PreparedScheduler, Unit
from drivetrain.transforms import compile as compiling

logger = get_logger(__name__)

_KINDS = (DataLoader, nn.Module, Optimizer, LRScheduler, PreparedScheduler)


class _Origin:
    """Which Accelerator prepared an object, how it was set, and what came of it. Holds nothing alive."""

    __slots__ = ("owner", "result", "settings", "trains")

    def __init__(self, owner: Any, result: Any, settings: tuple[Any, ...]) -> None:
        self.owner, self.result, self.settings = weakref.ref(owner), weakref.ref(result), settings
        self.trains = False
        """Whether a model was prepared to be trained, and had something to train."""


class Preparation:
    """`prepare` and what it is made of."""

    # The objects are shared by all Accelerators of the process, so who has prepared what is known to all of them.
    _origins: ClassVar[weakref.WeakKeyDictionary[Any, _Origin]] = weakref.WeakKeyDictionary()

    session: Session
    settings: Settings
    accumulation: Accumulation
    device_placement: bool
    dataloader_config: DataLoaderConfiguration
    dynamo_plugin: TorchDynamoPlugin
    rng_types: list[Any]
    schedule_unit: Unit
    step_scheduler_with_optimizer: bool
    _once: Once
    _models: list[nn.Module]
    _optimizers: list[PreparedOptimizer]
    _schedulers: list[PreparedScheduler]
    _dataloaders: list[Any]
    _custom_objects: list[Any]

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Give back each object in the form that runs on this run's hardware, in the order given.

        Models, optimizers, schedules and loaders, in any order, alone or inside lists, tuples and mappings; anything
        else comes back untouched, and so does what this Accelerator has prepared before. One argument gives one object,
        several give a tuple.

        This is the one call that changes the caller's objects: models are moved to the device.

        Args:
            device_placement: for each argument, whether its contents are moved to the device. None: as the
                Accelerator says.

        Raises:
            ConfigError: ``device_placement`` has another length than the arguments.
            UsageError: another Accelerator, which is still in use and set otherwise, has prepared one of the objects.
            InputError: a model has no weights yet (meta device), or is on another device and may not be moved.
        """
        if device_placement is None:
            placements: list[bool | None] = [None] * len(args)
        elif len(device_placement) != len(args):
            raise ConfigError(f"device_placement has {len(device_placement)} entries for {len(args)} objects.")
        else:
            placements = list(device_placement)
        done: dict[int, Any] = {}
        kinds: dict[type, list[tuple[Any, bool | None]]] = {kind: [] for kind in _KINDS}
        for arg, placed in zip(args, placements, strict=True):
            for item in leaves(arg, leaf=_can_prepare):
                if id(item) not in done:
                    done[id(item)] = item
                    kinds[next(k for k in _KINDS if isinstance(item, k))].append((item, placed))
        for item, placed in kinds[DataLoader]:
            done[id(item)] = self.prepare_data_loader(item, device_placement=placed)
        models = kinds[nn.Module]
        for (item, _), result in zip(models, self._prepare_models(models), strict=True):
            done[id(item)] = result
        for item, placed in kinds[Optimizer]:
            done[id(item)] = self.prepare_optimizer(item, device_placement=placed)
        for item, _ in kinds[LRScheduler] + kinds[PreparedScheduler]:
            done[id(item)] = self.prepare_scheduler(item)
        results = tuple(map_leaves(lambda item: done.get(id(item), item), arg, leaf=_is_kept_whole) for arg in args)
        return results[0] if len(results) == 1 else results

    # -- models --------------------------------------------------------------------------------------------------

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """One model, as `prepare` does it.

        Args:
            device_placement: whether it is moved to the device. None: as the Accelerator says.
            evaluation_mode: whether it is only evaluated, so that no gradients have to be reduced.
        """
        return self._prepare_models([(model, device_placement)], trained=not evaluation_mode)[0]

    def _prepare_models(self, models: list[tuple[nn.Module, bool | None]], *, trained: bool = True) -> list[nn.Module]:
        results = [self._prepared_before(model, trains=trained and _trains(model)) for model, _ in models]
        new = [(i, *models[i]) for i, result in enumerate(results) if result is None]
        for _, model, _ in new:
            self._check_model(model)
            if model not in self._origins:
                self._check_one_wrapper(model)
        placed = [self.device_placement if p is None else p for _, _, p in new]
        # A compiled model is wrapped inside its compilation: torch traces through the wrapper, not the other way.
        bundle = Bundle(
            models=[compiling.original(model) for _, model, _ in new],
            placed=[p and len(_device_map(m)) <= 1 for (_, m, _), p in zip(new, placed, strict=True)],
            trained=[trained] * len(new),
        )
        inner = [self.session.strategy.unwrap(model) for model in bundle.models]
        self.session.strategy.prepare(bundle)
        for (i, model, _), wrapped, own in zip(new, bundle.models, inner, strict=True):
            result = compiling.around(model, wrapped) if compiling.is_compiled(model) else wrapped
            result = compiling.compile_model(result, self.dynamo_plugin)
            if not any(own is known for known in self._models):
                self._models.append(own)
            self._remember(own, result)
            self._remember(model, result)
            self._origins[own].trains = self._origins[model].trains = trained and _trains(own)
            results[i] = result
        return [result for result in results if result is not None]

    def _check_model(self, model: nn.Module) -> None:
        parameters = list(model.named_parameters())
        empty = next((name for name, p in parameters if p.is_meta), None)
        if empty is not None:
            raise InputError(
                f"{type(model).__name__} cannot be prepared: its parameter {empty!r} is on the meta device, without "
                "values. Load the weights first, or build the model outside of init_empty_weights()."
            )
        if self.use_distributed and len(_device_map(model)) > 1:  # type: ignore[attr-defined]
            raise ConfigError(
                f"{type(model).__name__} is spread over {sorted(map(str, _device_map(model)))} by device_map, and "
                "cannot be replicated on every rank as well. Load it without device_map, or run one process."
            )
        here = {p.device for _, p in parameters if not p.is_meta}
        if not self.device_placement and self.use_distributed and any(d.type != self.device.type for d in here):  # type: ignore[attr-defined]
            raise InputError(
                f"{type(model).__name__} is on {', '.join(sorted(map(str, here)))}, but this run computes on "
                f"{self.device} and device_placement=False leaves it there. Move the model, or drop device_placement."  # type: ignore[attr-defined]
            )

    def _check_one_wrapper(self, model: nn.Module) -> None:
        inner = self.unwrap_model(model, keep_torch_compile=False)  # type: ignore[attr-defined]
        if inner is not model and self._prepared_before(inner) is not None:
            raise UsageError(
                f"this {type(model).__name__} wraps a {type(inner).__name__} prepared before, and a module has "
                "one wrapper. Wrap it before prepare(), or use what prepare() returned."
            )

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether ``model`` is spread over several devices by a device map."""
        return len(_device_map(model)) > 1

    # -- the others ----------------------------------------------------------------------------------------------

    def prepare_data_loader(
        self, data_loader: DataLoader, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """One loader, as `prepare` does it: each rank reads its share, batches arrive on the device."""
        before = self._prepared_before(data_loader)
        if before is not None:
            return before
        config, world = self.dataloader_config, self.session.world
        result = prepare_data_loader(
            data_loader,
            device=world.topology.device,
            num_processes=world.topology.world_size,
            process_index=world.topology.rank,
            split_batches=config.split_batches,
            put_on_device=self.device_placement if device_placement is None else device_placement,
            rng_types=list(self.rng_types),
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=config.data_seed,
            non_blocking=config.non_blocking,
            use_stateful_dataloader=config.use_stateful_dataloader,
            comm=world.comm,
            loops=self.accumulation.loops,
            synchronize=lambda kinds: rng.synchronize(kinds, world.comm, world.platform),
        )
        result.loops = self.accumulation.loops  # those of another, if an Accelerator that let go of it prepared it
        self._dataloaders.append(result)
        self._remember(data_loader, result)
        return result

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> PreparedOptimizer:
        """One optimizer, as `prepare` does it: it steps when a window ends."""
        before = self._prepared_before(optimizer)
        if before is not None:
            return before
        if isinstance(optimizer, PreparedOptimizer):
            result = optimizer
            result.follow(self.session.strategy, self.accumulation)
        else:
            result = PreparedOptimizer(
                optimizer,
                self.device_placement if device_placement is None else device_placement,
                strategy=self.session.strategy,
                accumulation=self.accumulation,
                device=self.session.world.topology.device,
            )
        self._optimizers.append(result)
        for schedule in self._schedulers:  # one that was prepared before its optimizer
            if getattr(schedule.scheduler, "optimizer", None) is optimizer:
                schedule.optimizers = [result]
        self._remember(optimizer, result)
        return result

    def prepare_scheduler(self, scheduler: Any) -> PreparedScheduler:
        """One schedule, as `prepare` does it: it moves when its optimizer has moved."""
        before = self._prepared_before(scheduler)
        if before is not None:
            return before
        own = getattr(scheduler, "optimizer", None)
        tied = [o for o in self._optimizers if own is o or own is o.optimizer]
        result = PreparedScheduler(
            scheduler.scheduler if isinstance(scheduler, PreparedScheduler) else scheduler,
            tied or ([own] if own is not None else list(self._optimizers)),
            self.step_scheduler_with_optimizer,
            self.dataloader_config.split_batches,
            unit=self.schedule_unit,
            num_processes=self.session.world.topology.world_size,
            accumulation=self.accumulation,
        )
        if result.steps_per_call > 1 and not self.settings.explicit("schedule_unit"):
            self._once.warning(
                logger,
                f"each call of a schedule's step() moves it {result.steps_per_call} steps, one for each process, as "
                "scripts for this API expect. For one step per optimizer step, as the schedule is written, give "
                "schedule_unit='optimizer_step' (or --schedule_unit optimizer_step).",
                key="schedule counting",
            )
        self._schedulers.append(result)
        self._remember(scheduler, result)
        return result

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A loader like ``dataloader`` whose first epoch leaves out its first ``num_batches`` batches."""
        return skip_first_batches(dataloader, num_batches=num_batches)

    @staticmethod
    def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[Any]:
        """Backward passes inside reduce the gradients of ``model``, although its forward pass ran under `no_sync`."""
        origin = Preparation._origins.get(model)
        owner = None if origin is None else origin.owner()
        return nullcontext() if owner is None else owner.session.strategy.trigger_sync(compiling.original(model))

    # -- letting go ----------------------------------------------------------------------------------------------

    def free_memory(self, *objects: Any) -> list[None]:
        """Let go of all that was prepared or registered, and empty the device's cache; for a new start.

        Returns one None for each of ``objects``, to overwrite the caller's own names with:
        ``model, optimizer = accelerator.free_memory(model, optimizer)``.
        """
        for held in (self._models, self._optimizers, self._schedulers, self._dataloaders, self._custom_objects):
            held.clear()
        for item in [item for item, origin in self._origins.items() if origin.owner() is self]:
            del self._origins[item]
        self.accumulation.clear()
        given = len(objects)
        del objects
        gc.collect()
        self.session.world.platform.empty_cache()
        return [None] * given

    clear = free_memory

    # -- who prepared what ---------------------------------------------------------------------------------------

    def _settings(self) -> tuple[Any, ...]:
        world = self.session.world
        return (self.session.strategy.name, self.session.precision, world.topology.device)

    def _remember(self, item: Any, result: Any) -> None:
        origin = _Origin(self, result, self._settings())
        self._origins[item] = self._origins[result] = origin

    def _prepared_before(self, item: Any, *, trains: bool = False) -> Any:
        """What became of ``item`` when it was prepared; None when it never was, or its Accelerator is gone.

        ``trains``: it is a model that is to be trained now, so what was prepared to be evaluated does not count.
        """
        origin = self._origins.get(item)
        if origin is None:
            return None
        if origin.owner() not in (None, self):
            gc.collect()  # an Accelerator nobody uses may wait for it
        owner, result = origin.owner(), origin.result()
        if owner is None or result is None:
            del self._origins[item]
            return None
        if owner is not self:
            self._check_shared(item, origin, owner)
            self._register(result)
        return None if trains and not origin.trains else result

    def _check_shared(self, item: Any, origin: _Origin, owner: Any) -> None:
        windows = not isinstance(item, nn.Module) and (owner.accumulation.steps > 1 or self.accumulation.steps > 1)
        scaled = isinstance(item, Optimizer) and self.session.precision.loss_scaling
        read = isinstance(item, DataLoader)
        if origin.settings != self._settings() or windows or scaled or read:
            how = "with gradient accumulation" if windows else "with a loss scale of its own" if scaled else ""
            how = how or ("which alone is told where its batches end" if read else "with other settings")
            raise UsageError(
                f"this {type(item).__name__} was prepared by another Accelerator that is still in use, {how}: there "
                f"{_text(origin.settings)}, here {_text(self._settings())}. Prepare it once, or call free_memory() on "
                "the other Accelerator first."
            )

    def _register(self, result: Any) -> None:
        lists = ((PreparedOptimizer, self._optimizers), (PreparedScheduler, self._schedulers))
        for kind, known in lists:
            if isinstance(result, kind) and result not in known:
                known.append(result)  # type: ignore[arg-type]
        if isinstance(result, nn.Module):
            inner = self.unwrap_model(result, keep_torch_compile=False)  # type: ignore[attr-defined]
            if not any(inner is model for model in self._models):
                self._models.append(inner)
        elif isinstance(result, DataLoader) and not any(result is loader for loader in self._dataloaders):
            self._dataloaders.append(result)


def _can_prepare(item: Any) -> bool:
    return isinstance(item, _KINDS)


def _is_kept_whole(item: Any) -> bool:
    """Whether ``item`` is prepared itself, or holds nothing to prepare: the very object comes back then."""
    return _can_prepare(item) or next(leaves(item, leaf=_can_prepare), None) is None


def _trains(model: nn.Module) -> bool:
    return any(p.requires_grad for p in model.parameters())


def _device_map(model: nn.Module) -> set[Any]:
    """The devices that a device map has spread ``model``, or a module inside it, over."""
    maps: list[Any] = [getattr(module, "hf_device_map", None) for module in model.modules()]
    return {device for one in maps if isinstance(one, Mapping) for device in one.values()}


def _text(settings: tuple[Any, ...]) -> str:
    strategy, precision, device = settings
    return f"{strategy} on {device} in precision {precision.name!r}"
