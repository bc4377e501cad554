"""Random state: seeding every generator a training touches, and making ranks agree on one."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import torch

from drivetrain.config.enums import RNGType
from drivetrain.core.errors import ConfigError
from drivetrain.platforms.base import Platform
from drivetrain.runtime.comm import Comm


def set_seed(
    seed: int,
    *,
    rank: int = 0,
    platform: Platform | None = None,
    device_specific: bool = False,
    deterministic: bool = False,
) -> None:
    """Seed Python, NumPy, torch and the devices of ``platform``.

    Args:
        device_specific: whether each rank gets a seed of its own, ``seed + rank``.
        deterministic: whether torch is told to use deterministic algorithms only.
    """
    if device_specific:
        seed += rank
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if platform is not None:
        platform.seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def synchronize(
    kinds: Iterable[RNGType | str], comm: Comm, platform: Platform, generator: torch.Generator | None = None
) -> None:
    """Give the random state of rank 0 to all ranks, for each of ``kinds``.

    Raises:
        ConfigError: a kind is unknown, belongs to another device, or is "generator" and none is given.
    """
    for kind in map(RNGType, kinds):
        if kind is RNGType.TORCH:
            torch.set_rng_state(comm.broadcast(torch.get_rng_state()))
        elif kind is RNGType.GENERATOR:
            if generator is None:
                raise ConfigError("the generator of a sampler is to be synchronised, but no generator was given.")
            generator.set_state(comm.broadcast(generator.get_state()))
        elif kind.value == platform.name:
            module = platform.module()
            module.set_rng_state_all([torch.as_tensor(s) for s in comm.broadcast_object(module.get_rng_state_all())])
        else:
            raise ConfigError(f"rng_types holds {kind}, but this run computes on {platform.name}.")
