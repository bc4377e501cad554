"""The part of the `Accelerator` about processes: who am I, who else is there, who does what first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from drivetrain.config.enums import DistributedType
from drivetrain.core.errors import ConfigError
from drivetrain.session import Session


class Processes:
    """Facts about the ranks, and calls that only some of them carry out."""

    session: Session

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of run: ``NO``, or what data parallel on this platform is called."""
        own = self.session.strategy.distributed_type
        world = self.session.world
        if own is not None:
            return own
        return world.platform.distributed_type if world.topology.is_distributed else DistributedType.NO

    @property
    def num_processes(self) -> int:
        """How many ranks there are."""
        return self.session.world.topology.world_size

    @property
    def process_index(self) -> int:
        """The number of this rank, from 0."""
        return self.session.world.topology.rank

    @property
    def local_process_index(self) -> int:
        """The number of this rank on its machine, from 0."""
        return self.session.world.topology.local_rank

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.session.world.topology.device

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one rank."""
        return self.session.world.topology.is_distributed

    @property
    def multi_device(self) -> bool:
        """Whether several ranks compute on accelerators (a run on CPUs is not one)."""
        return self.use_distributed and self.distributed_type not in (DistributedType.NO, DistributedType.MULTI_CPU)

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.session.world.topology.is_main

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self.session.world.topology.is_local_main

    @property
    def is_last_process(self) -> bool:
        """Whether this is the rank with the highest number."""
        return self.session.world.topology.is_last

    def wait_for_everyone(self) -> None:
        """Return when every rank has called this.

        Raises:
            CollectiveError: a rank makes another call instead, or does not come in time: which one, and its line.
        """
        self.session.world.control.wait_for_everyone()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print`, once a machine."""
        self.session.world.control.print(*args, **kwargs)

    def main_process_first(self) -> AbstractContextManager[None]:
        """The body runs on rank 0, then on the others. Every rank enters; an error on rank 0 is raised on all."""
        return self.session.world.control.first(self.is_main_process)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """The body runs on the first rank of each machine, then on the others. Every rank enters."""
        return self.session.world.control.first(self.is_local_main_process)

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        """Give this rank its share of ``inputs``; see `drivetrain.runtime.process.share` for what can be shared.

        A single string is given to each rank whole; a string inside a mapping is an error.
        """
        return self.session.world.control.split(inputs, apply_padding)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: the function runs on rank 0 only and returns None elsewhere. Decided at each call."""
        return self._only(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: the function runs once a machine and returns None elsewhere. Decided at each call."""
        return self._only(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: the function runs on the last rank only and returns None elsewhere. Decided at each call."""
        return self._only(function, lambda: self.is_last_process)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorator: the function runs on rank ``process_index`` only and returns None elsewhere.

        A process that is alone runs it whatever the index, as a script that is tried on one process expects.
        """
        rank = self._existing("process_index", process_index, self.num_processes)
        return self._only(function, lambda: self.process_index == rank or not self.use_distributed)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorator: the function runs on this local rank of each machine only and returns None elsewhere.

        A process that is alone runs it whatever the index.
        """
        size = self.session.world.topology.local_world_size
        rank = self._existing("local_process_index", local_process_index, size)
        return self._only(function, lambda: self.local_process_index == rank or not self.use_distributed)

    def _only(self, function: Callable[..., Any] | None, runs_here: Callable[[], bool]) -> Callable[..., Any]:
        if function is None:
            return functools.partial(self._only, runs_here=runs_here)
        return self.session.world.control.only(function, runs_here)

    def _existing(self, name: str, index: int | None, size: int) -> int:
        if index is None or index < 0 or (index >= size and self.use_distributed):
            raise ConfigError(f"{name}={index!r}, but the processes are numbered 0 to {size - 1}. Give one of those.")
        return index
