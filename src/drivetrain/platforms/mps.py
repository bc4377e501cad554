"""Apple GPUs through torch.mps. Written from torch's documentation; not run on this project's machines."""

from __future__ import annotations

from typing import Any

import torch

from drivetrain.config.enums import DistributedType
from drivetrain.core.errors import ConfigError
from drivetrain.platforms.base import Platform
from drivetrain.runtime.comm import Comm


class Mps(Platform):
    """The GPU of an Apple machine: one device, one process."""

    name = "mps"
    collective_backend = "gloo"
    distributed_type = DistributedType.NO
    priority = 100
    sum_dtype = torch.float32

    @classmethod
    def is_available(cls) -> bool:
        """Whether torch was built for it and the machine has it."""
        return torch.backends.mps.is_available()

    @classmethod
    def device_count(cls) -> int:
        """One, where there is any."""
        return int(cls.is_available())

    def device(self, local_rank: int) -> torch.device:
        """``mps``: there is no second one."""
        return torch.device("mps")

    def activate(self, device: torch.device) -> None:
        """Nothing to choose."""

    def open_comm(self, backend: str, device: torch.device, *args: Any, **options: Any) -> Comm:
        """See `Platform.open_comm`.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "several processes on mps are not available: an Apple machine has one such device, and no backend moves "
            "its tensors between processes. Run one process, or several on the processor with --cpu."
        )

    def rng_state(self) -> Any:
        """The state of the one generator."""
        return torch.mps.get_rng_state()

    def seed(self, seed: int) -> None:
        """Seed the one generator."""
        torch.mps.manual_seed(seed)

    def peak_memory(self, device: torch.device) -> int:
        """What the driver has allocated now, in bytes: torch keeps no record of the peak."""
        return int(torch.mps.driver_allocated_memory())
