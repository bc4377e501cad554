"""TPUs and other XLA devices through torch_xla. Its strategy comes with the sharded strategies; here is its seat."""

from __future__ import annotations

from typing import Any

import torch

from drivetrain.config.enums import DistributedType
from drivetrain.config.environ import ProcessEnv
from drivetrain.core.errors import ConfigError
from drivetrain.core.optional import installed, require
from drivetrain.platforms.base import Platform
from drivetrain.runtime.comm import Comm


class Xla(Platform):
    """Chosen by name only: torch_xla may be installed on a machine whose runs are meant for another device."""

    name = "xla"
    collective_backend = "xla"
    distributed_type = DistributedType.XLA
    priority = -1
    scales_loss = False

    @classmethod
    def is_available(cls) -> bool:
        """Whether torch_xla is installed; the device itself is not touched."""
        return installed("torch_xla")

    @classmethod
    def device_count(cls) -> int:
        """Devices of the XLA runtime that this process addresses."""
        return int(_runtime().addressable_device_count())

    def device(self, local_rank: int) -> torch.device:
        """The device XLA gives to this process."""
        return require("torch_xla>=2.5", needed_by="platform 'xla'").device()

    def activate(self, device: torch.device) -> None:
        """XLA has chosen already."""

    def locate(self, env: ProcessEnv) -> ProcessEnv:
        """XLA's runtime numbers the replicas itself."""
        runtime = _runtime()
        return ProcessEnv(
            rank=runtime.global_ordinal(),
            world_size=runtime.world_size(),
            local_rank=runtime.local_ordinal(),
            local_world_size=runtime.local_process_count(),
            launched=runtime.world_size() > 1,
        )

    def open_comm(self, backend: str, device: torch.device, *args: Any, **options: Any) -> Comm:
        """See `Platform.open_comm`.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "several processes on xla are not available in this version: the strategy for them is not there yet. Run "
            "one process, or several on the processor with --cpu."
        )

    def rng_state(self) -> Any:
        """The state of XLA's generator."""
        return _model().get_rng_state()

    def seed(self, seed: int) -> None:
        """Seed XLA's generator."""
        _model().set_rng_state(seed)

    def peak_memory(self, device: torch.device) -> int:
        """The most memory the runtime has used on ``device``, in bytes."""
        return int(_model().get_memory_info(device)["peak_bytes_used"])

    def empty_cache(self) -> None:
        """XLA manages its memory itself."""


def _runtime() -> Any:
    return require("torch_xla>=2.5", needed_by="platform 'xla'", module="torch_xla.runtime")


def _model() -> Any:
    return require("torch_xla>=2.5", needed_by="platform 'xla'", module="torch_xla.core.xla_model")
