"""Composition root: the one place that knows every part, and the order in which they come up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch

from drivetrain.config import environ
from drivetrain.config.environ import ProcessEnv
from drivetrain.config.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
)
from drivetrain.core import registry
from drivetrain.core.errors import ConfigError
from drivetrain.platforms.base import Platform
from drivetrain.precision import policy
from drivetrain.precision.policy import PrecisionPolicy
from drivetrain.runtime import shutdown
from drivetrain.runtime.comm import Comm, LocalComm
from drivetrain.runtime.process import ProcessControl
from drivetrain.runtime.topology import Topology
from drivetrain.strategies.base import Strategy, StrategyContext


@dataclass(frozen=True, kw_only=True)
class World:
    """The process and its peers: what several Accelerators of one process have in common."""

    topology: Topology
    platform: Platform
    comm: Comm
    control: ProcessControl


@dataclass(frozen=True, kw_only=True)
class Session:
    """A world, and how one Accelerator computes in it."""

    world: World
    precision: PrecisionPolicy
    strategy: Strategy


def open_world(
    *,
    cpu: bool = False,
    device: str | None = None,
    group: InitProcessGroupKwargs | None = None,
    collective_timeout: float | None = None,
) -> World:
    """Find out where this process is, choose its device, and join its peers.

    Args:
        cpu: whether to compute on the processor even where there is something faster.
        device: a torch device to use instead of the one that fits the local rank.
        group: how the process group is opened, if it has to be.
        collective_timeout: seconds that a collective waits for the other ranks.

    Raises:
        ConfigError: the environment describes no place that makes sense, or a backend that does not fit the device.
    """
    platform = choose_platform("cpu" if cpu else "auto" if device is None else torch.device(device).type)
    if device is not None and not cpu and not platform.is_available():
        raise ConfigError(
            f"torch_device={device!r} is not on this machine: there is no {platform.name} that torch can use. Leave it "
            "out, or name another device."
        )
    env = platform.locate(environ.process_env())
    chosen = torch.device(device) if device is not None and not cpu else platform.device(env.local_rank)
    platform.activate(chosen)
    topology = Topology(
        rank=env.rank,
        world_size=env.world_size,
        local_rank=env.local_rank,
        local_world_size=env.local_world_size,
        node_rank=env.node_rank,
        device=chosen,
    )
    comm = _comm(platform, chosen, env, group, collective_timeout) if topology.is_distributed else LocalComm()
    return World(topology=topology, platform=platform, comm=comm, control=ProcessControl(topology, comm))


def _comm(
    platform: Platform,
    device: torch.device,
    env: ProcessEnv,
    group: InitProcessGroupKwargs | None,
    collective_timeout: float | None,
) -> Comm:
    asked = group.to_kwargs() if group is not None else {}
    backend = asked.get("backend") or platform.collective_backend
    timeout: timedelta | None = group.timeout if group is not None and "timeout" in asked else None
    comm = platform.open_comm(
        backend,
        device,
        env,
        timeout=timeout,
        collective_timeout=collective_timeout,
        init_method=asked.get("init_method"),
    )
    shutdown.at_exit(comm)
    return comm


def choose_platform(name: str = "auto") -> Platform:
    """The platform called ``name``, or with ``"auto"`` the best one that this machine has."""
    if name != "auto":
        return registry.find("platforms", name, Platform)()
    known = [registry.find("platforms", n, Platform) for n in registry.names("platforms")]
    return max((p for p in known if p.priority >= 0 and p.is_available()), key=lambda p: p.priority)()


def open_session(
    world: World,
    *,
    mixed_precision: str,
    strategy: str = "auto",
    keep_low_precision_outputs: bool = False,
    autocast: AutocastKwargs | None = None,
    ddp: DistributedDataParallelKwargs | None = None,
    scaler: GradScalerKwargs | None = None,
) -> Session:
    """Choose precision and strategy for one Accelerator.

    Raises:
        ConfigError: the precision cannot run on this platform, or the strategy is unknown.
    """
    precision = policy.choose(
        mixed_precision,
        world.platform,
        keep_low_precision_outputs=keep_low_precision_outputs,
        autocast_enabled=autocast.enabled if autocast else True,
        cache_enabled=autocast.cache_enabled if autocast else None,
    )
    name = ("ddp" if world.topology.is_distributed else "single") if strategy == "auto" else strategy
    context = StrategyContext(
        topology=world.topology,
        platform=world.platform,
        comm=world.comm,
        precision=precision,
        scaler_options=scaler,
        ddp_options=ddp,
    )
    return Session(world=world, precision=precision, strategy=registry.find("strategies", name, Strategy)(context))
