"""Intel Gaudi through torch.hpu. Written from the vendor's documentation; not run on this project's machines."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Hpu(Platform):
    """Intel Gaudi through torch.hpu."""

    name = "hpu"
    collective_backend = "hccl"
    distributed_type = DistributedType.MULTI_HPU
    visible_devices_env = "HABANA_VISIBLE_MODULES"
    priority = 65
    extension = "habana_frameworks.torch"
