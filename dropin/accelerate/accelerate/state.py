"""The shared-state objects that other libraries look at: views of this process's world and of its newest Accelerator.

They keep nothing of their own but what somebody sets on them. `Accelerator.state` and `Accelerator.gradient_state` are
the same views, tied to that Accelerator, so that a second one does not change what the first one shows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from accelerate._names import attach
from accelerate.utils.environment import parse_flag_from_env
from drivetrain.config.enums import DistributedType
from drivetrain.config.handlers import GradientAccumulationPlugin, InitProcessGroupKwargs
from drivetrain.config.resolve import in_process
from drivetrain.core.errors import ConfigError
from drivetrain.runtime import shutdown
from drivetrain.runtime.accumulation import Accumulation, Loops
from drivetrain.session import Session, World, choose_platform, open_session, open_world


class Run:
    """What the views show of one Accelerator: how it computes, not what it has prepared."""

    def __init__(self, session: Session, accumulation: Accumulation, dynamo_plugin: Any = None) -> None:
        self.session, self.accumulation, self.dynamo_plugin = session, accumulation, dynamo_plugin
        self.set_by_hand: dict[str, Any] = {}
        self.plugin_extras: dict[str, Any] = {}


class _Current:
    """What views that belong to no Accelerator look at. There is one per process, as libraries expect."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.set_on_world: dict[str, Any] = {}
        self.run: Run | None = None
        self.windows = Run(None, Accumulation())  # type: ignore[arg-type] - only its windows are looked at


_current = _Current()


def install(run: Run) -> None:
    """Let the views show ``run``, the newest Accelerator's."""
    _current.world, _current.run, _current.windows = run.session.world, run, run


def opened_world() -> World | None:
    """The world that a `PartialState` or an Accelerator has opened, if there is one."""
    return _current.world


def current_loops() -> Loops:
    """The loops of the newest Accelerator's windows."""
    return _current.windows.accumulation.loops


def world() -> World:
    """The world of this process, opened now if nobody has opened it yet."""
    if _current.world is None:
        PartialState()
    assert _current.world is not None
    return _current.world


def _open(cpu: bool, backend: str | None = None, **group: Any) -> World:
    settings = in_process({"cpu": True if cpu else None}, contract_names=True)
    options = None
    given = {name: value for name, value in group.items() if value is not None}
    if backend is not None or given:
        platform = choose_platform("cpu" if settings["cpu"] else "auto")
        options = InitProcessGroupKwargs(backend=backend or platform.collective_backend, **given)
    return open_world(
        cpu=settings["cpu"], device=settings["torch_device"], group=options,
        collective_timeout=settings["collective_timeout"],
    )  # fmt: skip


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """What a process-control decorator leaves of a function on the processes where it does not run."""


class ThreadLocalSharedDict(threading.local):
    """A class attribute that gives each thread a dictionary of its own."""

    def __init__(self, thread_local: bool = False) -> None:
        self._storage: dict[str, Any] = {}

    def __get__(self, obj: Any, objtype: type | None = None) -> dict[str, Any]:
        return self._storage

    def __set__(self, obj: Any, value: dict[str, Any]) -> None:
        self._storage = value


class _Fact:
    """An attribute that reads the world or the run, unless somebody has set it on the state object."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read, self.__doc__ = read, read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, view: Any, owner: type | None = None) -> Any:
        if view is None:
            return self
        by_hand = view._by_hand()
        return by_hand[self.name] if self.name in by_hand else self.read(view)

    def __set__(self, view: Any, value: Any) -> None:
        view._by_hand()[self.name] = value


class _SharedState(MutableMapping):
    """The attributes of a state class as the dictionary that its instances are said to share."""

    def __init__(self, kind: type[_View]) -> None:
        self._kind = kind

    def _names(self) -> list[str]:
        if not self._kind._is_open():
            return []
        return [*self._kind._facts(), *(n for n in self._kind._by_hand_of_class() if n not in self._kind._facts())]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return getattr(object.__new__(self._kind), name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._kind._by_hand_of_class()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._kind._by_hand_of_class()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def clear(self) -> None:
        """Forget the state, as `_reset_state` does."""
        self._kind._forget()

    def __repr__(self) -> str:
        return repr(dict(self))


class _Shared(type):
    """Lets ``PartialState._shared_state`` be looked at, and emptied, on the class."""

    @property
    def _shared_state(cls) -> _SharedState:
        return _SharedState(cls)  # type: ignore[arg-type]

    @_shared_state.setter
    def _shared_state(cls, value: dict[str, Any]) -> None:
        cls._forget()  # type: ignore[attr-defined]
        cls._by_hand_of_class().update(value)  # type: ignore[attr-defined]


class _View(metaclass=_Shared):
    _tied_to: Run | None = None
    _known_attrs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _is_open(cls) -> bool:
        raise NotImplementedError

    @classmethod
    def _forget(cls) -> None:
        raise NotImplementedError

    @classmethod
    def _by_hand_of_class(cls) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _facts(cls) -> list[str]:
        return [name for base in reversed(cls.__mro__) for name, value in vars(base).items() if isinstance(value, _Fact)]

    @classmethod
    def _of(cls, run: Run) -> Any:
        view = object.__new__(cls)
        view.__dict__["_tied_to"] = run
        return view

    @property
    def _shared_state(self) -> _SharedState:
        return type(self)._shared_state

    def _by_hand(self) -> dict[str, Any]:
        return type(self)._by_hand_of_class() if self._tied_to is None else self._tied_to.set_by_hand

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), (_Fact, property)):
            object.__setattr__(self, name, value)
        else:
            self._by_hand()[name] = value

    def __getattr__(self, name: str) -> Any:
        # Reached for what is not there, and for facts of a state that has been reset.
        by_hand = {} if name.startswith("__") else self._by_hand()
        if name in by_hand:
            return by_hand[name]
        kind = type(self).__name__
        if name in self._known_attrs:
            raise AttributeError(
                f"`{kind}` object has no attribute `{name}`. This happens if `{kind}._reset_state()` was called and no "
                "`Accelerator` or `PartialState` was made after it."
            )
        raise AttributeError(f"'{kind}' object has no attribute '{name}'")


_WORLD_ATTRS = (
    "_cpu", "_mixed_precision", "_shared_state", "backend", "debug", "device", "distributed_type", "fork_launched",
    "local_process_index", "num_processes", "process_index",
)  # fmt: skip


class _WorldView(_View):
    """What `PartialState` and `AcceleratorState` have in common: the facts about processes, and process control."""

    _known_attrs = _WORLD_ATTRS

    def _world(self) -> World:
        raise NotImplementedError

    device = _Fact(lambda view: view._world().topology.device)
    distributed_type = _Fact(lambda view: _distributed_type(view._world()))
    num_processes = _Fact(lambda view: view._world().topology.world_size)
    process_index = _Fact(lambda view: view._world().topology.rank)
    local_process_index = _Fact(lambda view: view._world().topology.local_rank)
    backend = _Fact(lambda view: getattr(view._world().comm, "backend", None))
    debug = _Fact(lambda view: bool(view._world()) and parse_flag_from_env("ACCELERATE_DEBUG_MODE"))
    fork_launched = _Fact(lambda view: bool(view._world()) and parse_flag_from_env("FORK_LAUNCHED"))
    _cpu = _Fact(lambda view: view._world().topology.device.type == "cpu")

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.distributed_type != DistributedType.NO and self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the process with the highest number."""
        return self.process_index == self.num_processes - 1

    def wait_for_everyone(self) -> None:
        """Return when every process has called this."""
        self._world().control.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        """The body runs on process 0, then on the others. Every process enters; an error inside lets the others go on."""
        return self._world().control.first(self.is_main_process)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """The body runs on the first process of each machine, then on the others. Every process enters."""
        return self._world().control.first(self.is_local_main_process)

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        """Give this process its contiguous share of ``inputs``; the first processes get one more where it is uneven.

        Lists, tuples, tensors, NumPy arrays, data sets, and mappings of those are shared; the objects given are left
        alone. A single string, or anything else without entries, is given to each process whole; a string inside a
        mapping is an error, since the other values of the mapping are shared.

        Args:
            apply_padding: whether shorter shares are filled up with the last entry of ``inputs``.
        """
        return self._world().control.split(inputs, apply_padding)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print`, once a machine."""
        self._world().control.print(*args, **kwargs)

    def destroy_process_group(self, group: Any = None) -> None:
        """End ``group``; without one, the process group of the run, unless a launcher that forked owns it."""
        if group is not None or not self.fork_launched:
            shutdown.destroy(group)


def _distributed_type(world: World) -> DistributedType:
    return world.platform.distributed_type if world.topology.is_distributed else DistributedType.NO


class PartialState(_WorldView):
    """The processes of the run and the device of this one. The first one made opens the process group, if there is one."""

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        """
        Args:
            cpu: whether to compute on the processor. Counts for the first one only, as do the rest.
            kwargs: ``backend``, ``timeout`` (a `timedelta`) and ``init_method`` of the process group.

        Raises:
            ConfigError: an argument is unknown, or the backend does not fit the device.
        """
        kwargs.pop("_use_sagemaker_dp", None)
        unknown = set(kwargs) - {"backend", "timeout", "init_method"}
        if unknown:
            raise ConfigError(
                f"PartialState got {', '.join(sorted(unknown))}, which no process group takes. Known: backend, timeout, "
                "init_method."
            )
        if _current.world is None:
            _current.world = _open(cpu, **kwargs)

    @classmethod
    def _is_open(cls) -> bool:
        return _current.world is not None

    @classmethod
    def _forget(cls) -> None:
        _current.world = None
        _current.set_on_world.clear()

    @classmethod
    def _by_hand_of_class(cls) -> dict[str, Any]:
        return _current.set_on_world

    @staticmethod
    def _reset_state() -> None:
        """Forget the world; the process group stays open, and the next state joins it. Accelerators keep theirs."""
        PartialState._forget()

    def _world(self) -> World:
        if _current.world is None:
            raise AttributeError("there is no world")
        return _current.world

    @property
    def initialized(self) -> bool:
        """Whether the world has been opened."""
        return self._is_open()

    @property
    def default_device(self) -> torch.device:
        """The best device that this machine has."""
        return choose_platform().device(0)

    def set_device(self) -> None:
        """Nothing: the device is set when the state is made."""

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """``function`` on process 0, and `do_nothing` elsewhere. Decided here, once."""
        if not self.initialized:
            raise ConfigError("on_main_process needs a PartialState or an Accelerator. Make one first.")
        return self._where(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """``function`` on the first process of each machine, and `do_nothing` elsewhere. Decided here, once."""
        return self._where(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` on the last process, and `do_nothing` elsewhere. Decided here, once."""
        return self._where(function, lambda: self.is_last_process)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """``function`` on process ``process_index``, and `do_nothing` elsewhere. Decided here, once."""
        return self._where(function, lambda: self.process_index == process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """``function`` on this local process of each machine, and `do_nothing` elsewhere. Decided here, once."""
        return self._where(function, lambda: self.local_process_index == local_process_index)

    def _where(self, function: Callable[..., Any] | None, runs_here: Callable[[], bool]) -> Callable[..., Any]:
        if function is None:
            return lambda f: self._where(f, runs_here)
        return function if runs_here() or not self.use_distributed else do_nothing

    def __repr__(self) -> str:
        return _lines(self)


class AcceleratorState(_WorldView):
    """How the newest Accelerator computes; `Accelerator.state` is the same for that Accelerator."""

    _known_attrs = (*_WORLD_ATTRS, "deepspeed_plugin", "dynamo_plugin", "fsdp_plugin", "megatron_lm_plugin")

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        parallelism_config: Any = None,
        _from_accelerator: bool = False,
        **kwargs: Any,
    ) -> None:
        """Look at what is there. An argument has to agree with it.

        Raises:
            ConfigError: no Accelerator has been made yet, or it computes in another way than the arguments say.
        """
        if _current.run is None:
            if not _from_accelerator:
                raise ConfigError("there is no AcceleratorState yet: it shows how an Accelerator computes. Make one first.")
            PartialState(cpu, **kwargs)
            settings = in_process({"mixed_precision": mixed_precision}, contract_names=True)
            session = open_session(world(), mixed_precision=settings["mixed_precision"])
            install(Run(session, Accumulation(), dynamo_plugin))
        elif cpu and self.device.type != "cpu":
            raise ConfigError(
                f"AcceleratorState(cpu=True), but the Accelerator computes on {self.device}. Leave cpu out, or call "
                "AcceleratorState._reset_state() and make another Accelerator."
            )
        elif mixed_precision is not None and str(mixed_precision).lower() != self.mixed_precision:
            raise ConfigError(
                f"AcceleratorState(mixed_precision={mixed_precision!r}), but the Accelerator computes in "
                f"{self.mixed_precision!r}. Leave it out, or call AcceleratorState._reset_state() and make another one."
            )

    @classmethod
    def _is_open(cls) -> bool:
        return _current.run is not None

    @classmethod
    def _forget(cls) -> None:
        _current.run = None

    @classmethod
    def _by_hand_of_class(cls) -> dict[str, Any]:
        return {} if _current.run is None else _current.run.set_by_hand

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Forget the newest Accelerator, and the world with ``reset_partial_state``. Accelerators themselves stay."""
        AcceleratorState._forget()
        if reset_partial_state:
            PartialState._reset_state()

    def _run(self) -> Run:
        run = self._tied_to or _current.run
        if run is None:
            raise AttributeError("there is no Accelerator")
        return run

    def _world(self) -> World:
        return self._run().session.world

    distributed_type = _Fact(
        lambda view: view._run().session.strategy.distributed_type or _distributed_type(view._world())
    )
    _mixed_precision = _Fact(lambda view: view._run().session.precision.name)
    dynamo_plugin = _Fact(lambda view: view._run().dynamo_plugin)
    deepspeed_plugins = _Fact(lambda view: view._run() and None)
    fsdp_plugin = _Fact(lambda view: view._run() and None)
    megatron_lm_plugin = _Fact(lambda view: view._run() and None)
    torch_tp_plugin = _Fact(lambda view: view._run() and None)
    parallelism_config = _Fact(lambda view: view._run() and None)
    device_mesh = _Fact(lambda view: view._run() and None)

    @property
    def mixed_precision(self) -> str:
        """``no``, ``fp16`` or ``bf16``."""
        return self._mixed_precision

    @property
    def initialized(self) -> bool:
        """Whether there is an Accelerator to look at."""
        return self._tied_to is not None or self._is_open()

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by ``fully_shard``: not in this version."""
        return False

    @property
    def deepspeed_plugin(self) -> Any:
        """The active DeepSpeed plugin, or None."""
        return self.deepspeed_plugins

    def get_deepspeed_plugin(self, name: str) -> Any:
        """The DeepSpeed plugin called ``name``.

        Raises:
            ConfigError: the run does not use DeepSpeed.
        """
        raise ConfigError(f"there is no DeepSpeed plugin {name!r}: this run does not use DeepSpeed.")

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        """Make the DeepSpeed plugin called ``name`` the active one.

        Raises:
            ConfigError: the run does not use DeepSpeed.
        """
        self.get_deepspeed_plugin(str(name))

    def __repr__(self) -> str:
        return f"{_lines(self)}\nMixed precision type: {self.mixed_precision}\n"


def _lines(view: _WorldView) -> str:
    backend = f"  Backend: {view.backend}" if view.backend else ""
    return (
        f"Distributed environment: {view.distributed_type}{backend}\nNum processes: {view.num_processes}\n"
        f"Process index: {view.process_index}\nLocal process index: {view.local_process_index}\nDevice: {view.device}\n"
    )


class _PluginKwargs(MutableMapping):
    """The options of an Accelerator's windows, as the dictionary that scripts read and write."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def _values(self) -> dict[str, Any]:
        windows = self._run.accumulation
        out: dict[str, Any] = {"num_steps": windows.steps}
        if not windows.sync_with_dataloader:
            out["sync_with_dataloader"] = False
        if windows.sync_each_batch:
            out["sync_each_batch"] = True
        return out | self._run.plugin_extras

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "num_steps":
            self._run.accumulation.steps = GradientAccumulationPlugin(num_steps=value).num_steps or 1
        elif name in ("sync_with_dataloader", "sync_each_batch"):
            setattr(self._run.accumulation, name, bool(value))
        else:
            self._run.plugin_extras[name] = value

    def __delitem__(self, name: str) -> None:
        default = GradientAccumulationPlugin(num_steps=1)
        if hasattr(default, name):
            self[name] = getattr(default, name)
        else:
            del self._run.plugin_extras[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return repr(self._values())


class GradientState:
    """The accumulation windows of the newest Accelerator; `Accelerator.gradient_state` is the same for that one."""

    _tied_to: Run | None = None

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        """
        Args:
            gradient_accumulation_plugin: options that the windows shall have from now on.
        """
        if gradient_accumulation_plugin is not None:
            self.plugin_kwargs.update(gradient_accumulation_plugin.to_kwargs())

    @classmethod
    def _of(cls, run: Run) -> GradientState:
        view = object.__new__(cls)
        view._tied_to = run
        return view

    def _run(self) -> Run:
        return self._tied_to or _current.windows

    @staticmethod
    def _reset_state() -> None:
        """Forget the newest Accelerator's windows; that Accelerator keeps them."""
        _current.windows = Run(None, Accumulation())  # type: ignore[arg-type]

    @property
    def plugin_kwargs(self) -> MutableMapping[str, Any]:
        """Options of the windows that differ from the default; writing one changes the windows."""
        return _PluginKwargs(self._run())

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends its window."""
        return self._run().accumulation.sync

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._run().accumulation.sync = value

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Say whether the current micro-batch ends its window. For trainers that count by themselves."""
        self._run().accumulation.sync = sync_gradients

    @property
    def num_steps(self) -> int:
        """Micro-batches per optimizer step, per rank."""
        return self._run().accumulation.steps

    @property
    def adjust_scheduler(self) -> bool:
        """False: a schedule never moves inside a window."""
        return False

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the end of a loader ends the window."""
        return self._run().accumulation.sync_with_dataloader

    @property
    def initialized(self) -> bool:
        """True: there are always windows to look at."""
        return True

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being read."""
        return self._run().accumulation.loops.active is not None

    @property
    def active_dataloader(self) -> Any:
        """The prepared loader that is being read, the innermost one; or None."""
        return self._run().accumulation.loops.active

    @property
    def dataloader_references(self) -> list[Any]:
        """None, then the prepared loaders that are being read, the innermost last."""
        return [None, *self._run().accumulation.loops.open]

    def _add_dataloader(self, dataloader: Any) -> None:
        """``dataloader``, which has the attributes of a `Loop`, starts an epoch."""
        self._run().accumulation.loops.enter(dataloader)

    def _remove_dataloader(self, dataloader: Any) -> None:
        """``dataloader`` has ended."""
        self._run().accumulation.loops.leave(dataloader)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the active loader has handed out its last batch. False outside of loops."""
        active = self.active_dataloader
        return active is not None and active.end_of_data

    @property
    def remainder(self) -> int:
        """Real samples in the last global batch of the active loader; -1 for unknown, and outside of loops."""
        active = self.active_dataloader
        return -1 if active is None else active.remainder

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether gradients need no further reduction on XLA; only sharded training reduces them by itself."""
        return parse_flag_from_env("ACCELERATE_USE_FSDP")

    def __repr__(self) -> str:
        return (
            f"Sync Gradients: {self.sync_gradients}\nAt end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\nGradient accumulation plugin: {self.plugin_kwargs}\n"
        )


def is_initialized() -> bool:
    """Whether an Accelerator has been made (and its state not been reset)."""
    return _current.run is not None


__getattr__, __dir__ = attach(__name__)
