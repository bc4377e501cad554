"""Random state: seeding it, and making processes agree on it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from drivetrain.config.enums import RNGType
from drivetrain.core.errors import ConfigError
from drivetrain.session import choose_platform
from drivetrain.training import rng

from accelerate import _current
from accelerate._names import attach


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python, NumPy, torch and the device.

    Args:
        device_specific: whether each process gets a seed of its own, ``seed + process_index``.
        deterministic: whether torch is told to use deterministic algorithms only.
    """
    opened = _current.world() if device_specific else _current.opened_world()
    rng.set_seed(
        seed,
        rank=0 if opened is None else opened.topology.rank,
        platform=choose_platform() if opened is None else opened.platform,
        device_specific=device_specific,
        deterministic=deterministic,
    )


def synchronize_rng_state(rng_type: RNGType | str | None = None, generator: torch.Generator | None = None) -> None:
    """Give the random state of process 0 to all, for one kind of generator. Every process calls it.

    Raises:
        ConfigError: no kind is given, it belongs to another device, or it is "generator" and none is given.
    """
    if rng_type is None:
        raise ConfigError(f"rng_type says which random state is meant. Give one of {RNGType.list()}.")
    synchronize_rng_states([rng_type], generator)


def synchronize_rng_states(rng_types: Iterable[str | RNGType], generator: torch.Generator | None = None) -> None:
    """Give the random state of process 0 to all, for several kinds of generators. Every process calls it.

    Raises:
        ConfigError: a kind is unknown or belongs to another device, or it is "generator" and none is given.
    """
    here = _current.world()
    rng.synchronize(rng_types, here.comm, here.platform, generator)


__getattr__, __dir__ = attach(__name__)
