"""Huawei Ascend through torch.npu. Written from the vendor's documentation; not run on this project's machines."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Npu(Platform):
    """Huawei Ascend through torch.npu."""

    name = "npu"
    collective_backend = "hccl"
    distributed_type = DistributedType.MULTI_NPU
    visible_devices_env = "ASCEND_RT_VISIBLE_DEVICES"
    priority = 70
    extension = "torch_npu"
