"""AWS Trainium and Inferentia through torch.neuron. Written from the documentation, not run by us."""

from __future__ import annotations

from drivetrain.config.enums import DistributedType
from drivetrain.platforms.base import Platform


class Neuron(Platform):
    """AWS Trainium and Inferentia through torch.neuron."""

    name = "neuron"
    collective_backend = "neuron"
    distributed_type = DistributedType.MULTI_NEURON
    visible_devices_env = "NEURON_RT_VISIBLE_CORES"
    priority = 40
    extension = "torch_neuronx"
