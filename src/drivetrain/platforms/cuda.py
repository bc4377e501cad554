"""NVIDIA and AMD GPUs through torch.cuda. Written from the documentation, not run by us."""

from __future__ import annotations

import torch

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Cuda(Platform):
    """NVIDIA and AMD GPUs through torch.cuda."""

    name = "cuda"
    collective_backend = "nccl"
    distributed_type = DistributedType.MULTI_GPU
    visible_devices_env = "CUDA_VISIBLE_DEVICES"
    priority = 60

    @classmethod
    def is_available(cls) -> bool:
        """Whether the driver lists a device; asks the driver's own library, so that a fork afterwards is safe."""
        return torch.cuda.device_count() > 0
