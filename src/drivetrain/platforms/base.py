"""A platform is one vendor's device as torch exposes it. Every method has a default over ``torch.<name>``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import torch

from drivetrain.config import environ
from drivetrain.config.enums import DistributedType
from drivetrain.config.environ import ProcessEnv
from drivetrain.core.errors import ConfigError
from drivetrain.runtime.comm import Comm, TorchComm


class Platform:
    """The hardware of a run. Subclasses are mostly data."""

    name: ClassVar[str]
    """Also the device type of torch and the module ``torch.<name>``."""
    collective_backend: ClassVar[str]
    distributed_type: ClassVar[DistributedType]
    """What a data-parallel run on several of these devices is called."""
    visible_devices_env: ClassVar[str | None] = None
    priority: ClassVar[int] = 0
    """Of the platforms a machine has, the one with the highest number is chosen."""
    extension: ClassVar[str | None] = None
    """Package that adds the device to torch; imported when the platform is asked for."""
    sum_dtype: ClassVar[torch.dtype] = torch.float64
    """The widest floating type the device can add, used for sums of weights."""
    scales_loss: ClassVar[bool] = True
    """Whether fp16 with a loss scaler works on the device."""

    @classmethod
    def module(cls) -> Any:
        """``torch.<name>``, or None where this torch has no such module."""
        if cls.extension is not None:
            from drivetrain.core.optional import installed

            if not installed(cls.extension):
                return None
            import importlib

            importlib.import_module(cls.extension)
        return getattr(torch, cls.name, None)

    @classmethod
    def is_available(cls) -> bool:
        """Whether this machine has such a device. Initialises no device."""
        module = cls.module()
        return module is not None and hasattr(module, "is_available") and bool(module.is_available())

    @classmethod
    def device_count(cls) -> int:
        """Devices this process can see. Initialises none of them, so a fork afterwards is safe."""
        module = cls.module()
        return int(module.device_count()) if module is not None else 0

    def device(self, local_rank: int) -> torch.device:
        """The device of the process with this local rank."""
        return torch.device(self.name, local_rank % max(1, self.device_count()))

    def activate(self, device: torch.device) -> None:
        """Make ``device`` the current one of this process."""
        self.module().set_device(device)

    def locate(self, env: ProcessEnv) -> ProcessEnv:
        """Where this process is. Overridden where the vendor's runtime knows better than the environment."""
        return env

    def open_comm(
        self,
        backend: str,
        device: torch.device,
        env: ProcessEnv,
        *,
        timeout: timedelta | None,
        collective_timeout: float | None,
        init_method: str | None,
    ) -> Comm:
        """Start, or join, the process group of the run."""
        return TorchComm(
            backend,
            device,
            timeout=timeout,
            collective_timeout=collective_timeout,
            rank=env.rank,
            world_size=env.world_size,
            init_method=init_method or _rendezvous(env),
        )

    def why_not(self, precision: str) -> str | None:
        """Why ``precision`` (``"bf16"``, ``"fp16"``) cannot be computed here, or None when it can."""
        module = self.module()
        if precision == "bf16" and hasattr(module, "is_bf16_supported") and not module.is_bf16_supported():
            return f"this {self.name} device has no bfloat16 arithmetic"
        return None

    def ddp_devices(self, device: torch.device) -> list[torch.device] | None:
        """``device_ids`` of ``DistributedDataParallel``."""
        return [device]

    def rng_state(self) -> Any:
        """The random state of all devices of this process, as tensors."""
        return self.module().get_rng_state_all()

    def seed(self, seed: int) -> None:
        """Seed the generators of all devices of this process."""
        self.module().manual_seed_all(seed)

    def peak_memory(self, device: torch.device) -> int:
        """The most memory that tensors have taken on ``device``, in bytes."""
        return int(self.module().max_memory_allocated(device))

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the driver."""
        self.module().empty_cache()


def _rendezvous(env: ProcessEnv) -> str | None:
    """Where the ranks meet. None: torch reads ``MASTER_ADDR`` and ``MASTER_PORT`` itself, as torchrun sets them."""
    if environ.read("MASTER_ADDR") and environ.read("MASTER_PORT"):
        return None
    if env.master_addr is None:
        raise ConfigError(
            f"rank {env.rank} of {env.world_size} does not know where rank 0 is: MASTER_ADDR is not set. Set "
            "MASTER_ADDR and MASTER_PORT to the address of rank 0's machine and a free port on it."
        )
    return f"tcp://{env.master_addr}:{env.master_port}"
