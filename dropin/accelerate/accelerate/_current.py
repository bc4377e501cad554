"""What the shared-state views look at: the world of this process, and how its newest Accelerator computes in it."""

from __future__ import annotations

import os
from typing import Any

from drivetrain.config.environ import process_env
from drivetrain.config.handlers import InitProcessGroupKwargs
from drivetrain.config.resolve import in_process
from drivetrain.runtime.accumulation import Accumulation, Loops
from drivetrain.session import Session, World, choose_platform, open_world


class Run:
    """What the views show of one Accelerator: how it computes, not what it has prepared."""

    def __init__(self, session: Session, accumulation: Accumulation, dynamo_plugin: Any = None) -> None:
        self.session, self.accumulation, self.dynamo_plugin = session, accumulation, dynamo_plugin
        self.set_by_hand: dict[str, Any] = {}
        self.plugin_extras: dict[str, Any] = {}


class Current:
    """What views that belong to no Accelerator look at. There is one per process, as libraries expect."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._world: World | None = None
        self._process = os.getpid()
        self.set_on_world: dict[str, Any] = {}
        self.run: Run | None = None
        self.windows = Run(None, Accumulation())  # type: ignore[arg-type] - only its windows are looked at

    @property
    def world(self) -> World | None:
        """The world that was opened in this process.

        A fork that a launcher made into a rank is in another world than the process it was forked from; one that only
        reads data for this process is not.
        """
        if self._process != os.getpid():
            self._process = os.getpid()
            env = process_env()
            if self._world is not None and (env.rank, env.world_size) != _place(self._world):
                self.forget()
        return self._world

    def newest(self) -> Run | None:
        """How the newest Accelerator of this process computes."""
        _ = self.world  # a fork forgets the Accelerators of the process it was forked from
        return self.run

    @world.setter
    def world(self, world: World | None) -> None:
        self._world, self._process = world, os.getpid()


def _place(world: World) -> tuple[int, int]:
    return world.topology.rank, world.topology.world_size


current = Current()


def install(run: Run) -> None:
    """Let the views show ``run``, the newest Accelerator's."""
    current.world, current.run, current.windows = run.session.world, run, run


def opened_world() -> World | None:
    """The world that a `PartialState` or an Accelerator has opened, if there is one."""
    return current.world


def current_loops() -> Loops:
    """The loops of the newest Accelerator's windows."""
    return current.windows.accumulation.loops


def world() -> World:
    """The world of this process, opened now if nobody has opened it yet."""
    opened = current.world
    if opened is None:
        opened = current.world = open_now()
    return opened


def open_now(cpu: bool = False, backend: str | None = None, **group: Any) -> World:
    """Open a world as arguments and variables say.

    Raises:
        ConfigError: they contradict one another, or the backend does not fit the device.
    """
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
