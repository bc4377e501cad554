"""Cambricon through torch.mlu. Written from the vendor's documentation; not run on this project's machines."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Mlu(Platform):
    """Cambricon through torch.mlu."""

    name = "mlu"
    collective_backend = "cncl"
    distributed_type = DistributedType.MULTI_MLU
    visible_devices_env = "MLU_VISIBLE_DEVICES"
    priority = 90
    extension = "torch_mlu"
