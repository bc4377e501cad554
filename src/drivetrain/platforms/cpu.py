"""The processor itself: always there, always last choice."""

from __future__ import annotations

from typing import Any

import torch

from drivetrain.config.enums import DistributedType
from drivetrain.config.environ import ProcessEnv
from drivetrain.core.errors import ConfigError
from drivetrain.platforms.base import Platform
from drivetrain.runtime.comm import Comm


class Cpu(Platform):
    """Computes on the processor; ranks talk through gloo."""

    name = "cpu"
    collective_backend = "gloo"
    distributed_type = DistributedType.MULTI_CPU

    @classmethod
    def is_available(cls) -> bool:
        """Always."""
        return True

    @classmethod
    def device_count(cls) -> int:
        """One: all ranks of a machine share its processor."""
        return 1

    def device(self, local_rank: int) -> torch.device:
        """``cpu``, whatever the rank."""
        return torch.device("cpu")

    def activate(self, device: torch.device) -> None:
        """Nothing to choose."""

    def open_comm(self, backend: str, device: torch.device, env: ProcessEnv, **options: Any) -> Comm:
        """See `Platform.open_comm`.

        Raises:
            ConfigError: the backend moves data between accelerators only.
        """
        if backend not in ("gloo", "mpi", "ucc"):
            raise ConfigError(f"backend={backend!r} cannot move data between CPUs, which this run uses. Use 'gloo'.")
        return super().open_comm(backend, device, env, **options)

    def why_not(self, precision: str) -> str | None:
        """The processor computes in every precision, if slowly."""
        return None

    def ddp_devices(self, device: torch.device) -> list[torch.device] | None:
        """None, as DDP wants it for the processor."""
        return None

    def rng_state(self) -> Any:
        """Nothing beside torch's own state."""
        return None

    def seed(self, seed: int) -> None:
        """Nothing beside torch's own generator."""

    def peak_memory(self, device: torch.device) -> int:
        """The largest resident size of this process, in bytes."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def empty_cache(self) -> None:
        """The allocator of the processor keeps no cache."""
