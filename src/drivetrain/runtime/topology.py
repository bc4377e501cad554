"""Facts about this process that never change after start-up."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where this process stands among its peers, and the device it computes on."""

    rank: int
    world_size: int
    local_rank: int
    """Rank among the processes of this machine."""
    local_world_size: int
    node_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of all."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return self.local_rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the rank with the highest number."""
        return self.rank == self.world_size - 1

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one rank."""
        return self.world_size > 1
