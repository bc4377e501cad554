"""The part of the `Accelerator` through which models leave it: unwrapped, as weights, on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.checkpoint import weights
from drivetrain.config.handlers import ProjectConfiguration
from drivetrain.core.errors import InputError
from drivetrain.precision import autocast
from drivetrain.session import Session
from drivetrain.transforms import compile as compiling


class Output:
    """What a prepared model was, and what it has learned."""

    session: Session
    project_configuration: ProjectConfiguration

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """The user's module inside a prepared one.

        Args:
            keep_fp32_wrapper: whether its forward still runs in mixed precision. False takes that from the module.
            keep_torch_compile: whether a compiled model comes back compiled.
        """
        inner = self._inner(model)
        if not keep_fp32_wrapper:
            autocast.remove(inner)
        return compiling.around(model, inner) if keep_torch_compile and compiling.is_compiled(model) else inner

    def _inner(self, model: nn.Module) -> nn.Module:
        peeled = self.session.strategy.unwrap(compiling.original(model))
        peeled = peeled.module if isinstance(peeled, nn.DataParallel) else peeled
        return compiling.original(peeled)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Whole weights of ``model``; under the user's own names with ``unwrap``. All ranks call it.

        Rank 0 gets them; under data parallel every rank does. They share memory with the model.
        """
        return self.session.strategy.full_state_dict(self._inner(model)) if unwrap else model.state_dict()

    @property
    def should_save_model(self) -> bool:
        """Whether this rank writes what `save_model` saves."""
        return self._writes

    @property
    def _writes(self) -> bool:
        topology = self.session.world.topology
        return topology.is_local_main if self.project_configuration.save_on_each_node else topology.is_main

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write ``obj`` to the file ``f``, on one rank (or one a machine, as the project's configuration says).

        The file appears complete or not at all. With ``safe_serialization`` a mapping of names to tensors is written as
        safetensors; otherwise anything is written by `torch.save`, which pickles.

        Raises:
            InputError: ``safe_serialization`` is asked for something else than a mapping of names to tensors.
        """
        if not self._writes:
            return
        if not safe_serialization:
            weights.replace(Path(f), lambda path: torch.save(obj, path))
            return
        if not isinstance(obj, Mapping):
            raise InputError(
                f"save(..., safe_serialization=True) writes a mapping of names to tensors, not a {type(obj).__name__}. "
                "Give model.state_dict(), or leave safe_serialization out."
            )
        weights.save_file(obj, Path(f))

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the whole weights of ``model`` into a folder that `load_checkpoint_in_model` and others read.

        All ranks call it; one of them writes. Files appear complete or not at all.

        Args:
            max_shard_size: largest file, in bytes or as text such as "10GB". Larger weights are split, with an index.
            safe_serialization: safetensors, or torch's pickled format.

        Raises:
            InputError: ``save_directory`` is a file.
        """
        folder = Path(save_directory)
        if folder.is_file():
            raise InputError(f"save_directory={str(folder)!r} is a file. Give the name of a folder.")
        state = self.get_state_dict(model)
        if self._writes:
            weights.save_weights(state, folder, max_shard_size=max_shard_size, safe=safe_serialization)
