"""Intel GPUs through torch.xpu. Written from the vendor's documentation; not run on this project's machines."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Xpu(Platform):
    """Intel GPUs through torch.xpu."""

    name = "xpu"
    collective_backend = "xccl"
    distributed_type = DistributedType.MULTI_XPU
    visible_devices_env = "ZE_AFFINITY_MASK"
    priority = 50
