"""The shared-state objects that other libraries look at: views of this process's world and of its newest Accelerator.

They keep nothing of their own but what somebody sets on them. `Accelerator.state` and `Accelerator.gradient_state` are
the same views, tied to that Accelerator, so that a second one does not change what the first one shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from drivetrain.config.enums import DistributedType
from drivetrain.config.resolve import in_process
from drivetrain.core.errors import ConfigError
from drivetrain.runtime import shutdown
from drivetrain.runtime.accumulation import Accumulation
from drivetrain.session import World, choose_platform, open_session

from accelerate._current import Run, current, install, open_now, world
from accelerate._gradients import GradientState as GradientState
from accelerate._later import NotAvailable, text
from accelerate._names import attach
from accelerate._views import Fact, View
from accelerate.utils.environment import parse_flag_from_env


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


_WORLD_ATTRS = (
    "_cpu", "_mixed_precision", "_shared_state", "backend", "debug", "device", "distributed_type", "fork_launched",
    "local_process_index", "num_processes", "process_index",
)  # fmt: skip


class _WorldView(View):
    """What `PartialState` and `AcceleratorState` have in common: the facts about processes, and process control."""

    _known_attrs = _WORLD_ATTRS

    def _world(self) -> World:
        raise NotImplementedError

    device = Fact(lambda view: view._world().topology.device)
    distributed_type = Fact(lambda view: _distributed_type(view._world()))
    num_processes = Fact(lambda view: view._world().topology.world_size)
    process_index = Fact(lambda view: view._world().topology.rank)
    local_process_index = Fact(lambda view: view._world().topology.local_rank)
    backend = Fact(lambda view: getattr(view._world().comm, "backend", None))
    debug = Fact(lambda view: bool(view._world()) and parse_flag_from_env("ACCELERATE_DEBUG_MODE"))
    fork_launched = Fact(lambda view: bool(view._world()) and parse_flag_from_env("FORK_LAUNCHED"))
    _cpu = Fact(lambda view: view._world().topology.device.type == "cpu")

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
        """The body runs on process 0, then on the others. Every process enters, and is let in when the body fails."""
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
    """The processes of the run, and the device of this one. Made first, it opens the process group if there is one."""

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        """
        Args:
            cpu: whether to compute on the processor. Counts for the first one only, as do the rest.
            kwargs: ``backend``, ``timeout`` (a `timedelta`) and ``init_method`` of the process group.

        Raises:
            ConfigError: an argument is unknown, or the backend does not fit the device.
            NotAvailable: SageMaker's data parallel is asked for.
        """
        if kwargs.pop("_use_sagemaker_dp", None):
            raise NotAvailable(text("data parallel on SageMaker", "starting runs on clouds and TPU pods"))
        unknown = set(kwargs) - {"backend", "timeout", "init_method"}
        if unknown:
            raise ConfigError(
                f"PartialState got {', '.join(sorted(unknown))}, which no process group takes. Known: backend, timeout "
                "and init_method."
            )
        if current.world is None:
            current.world = open_now(cpu, **kwargs)

    @classmethod
    def _is_open(cls) -> bool:
        return current.world is not None

    @classmethod
    def _forget(cls) -> None:
        current.world = None
        current.set_on_world.clear()

    @classmethod
    def _by_hand_of_class(cls) -> dict[str, Any]:
        return current.set_on_world

    @staticmethod
    def _reset_state() -> None:
        """Forget the world; the process group stays open, and the next state joins it. Accelerators keep theirs."""
        PartialState._forget()

    def _world(self) -> World:
        if current.world is None:
            raise AttributeError("there is no world")
        return current.world

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
        if not self._is_open():
            if not _from_accelerator:
                raise ConfigError(
                    "there is no AcceleratorState yet: it shows how an Accelerator computes. Make one first."
                )
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
        return current.newest() is not None

    @classmethod
    def _forget(cls) -> None:
        current.run = None

    @classmethod
    def _by_hand_of_class(cls) -> dict[str, Any]:
        return {} if current.run is None else current.run.set_by_hand

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Forget the newest Accelerator, and the world with ``reset_partial_state``. Accelerators themselves stay."""
        AcceleratorState._forget()
        if reset_partial_state:
            PartialState._reset_state()

    def _run(self) -> Run:
        run = self._tied_to or current.newest()
        if run is None:
            raise AttributeError("there is no Accelerator")
        return run

    def _world(self) -> World:
        return self._run().session.world

    distributed_type = Fact(
        lambda view: view._run().session.strategy.distributed_type or _distributed_type(view._world())
    )
    _mixed_precision = Fact(lambda view: view._run().session.precision.name)
    dynamo_plugin = Fact(lambda view: view._run().dynamo_plugin)
    deepspeed_plugins = Fact(lambda view: view._run() and None)
    fsdp_plugin = Fact(lambda view: view._run() and None)
    megatron_lm_plugin = Fact(lambda view: view._run() and None)
    torch_tp_plugin = Fact(lambda view: view._run() and None)
    parallelism_config = Fact(lambda view: view._run() and None)
    device_mesh = Fact(lambda view: view._run() and None)

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


def is_initialized() -> bool:
    """Whether an Accelerator has been made (and its state not been reset)."""
    return current.newest() is not None


__getattr__, __dir__ = attach(__name__)
