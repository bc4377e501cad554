"""Tecorigin through torch.sdaa. Written from the vendor's documentation; not run on this project's machines."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Sdaa(Platform):
    """Tecorigin through torch.sdaa."""

    name = "sdaa"
    collective_backend = "tccl"
    distributed_type = DistributedType.MULTI_SDAA
    visible_devices_env = "SDAA_VISIBLE_DEVICES"
    priority = 85
    extension = "torch_sdaa"
