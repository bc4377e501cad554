"""Moore Threads through torch.musa. Written from the vendor's documentation; not run on this project's machines."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Musa(Platform):
    """Moore Threads through torch.musa."""

    name = "musa"
    collective_backend = "mccl"
    distributed_type = DistributedType.MULTI_MUSA
    visible_devices_env = "MUSA_VISIBLE_DEVICES"
    priority = 80
    extension = "torch_musa"
