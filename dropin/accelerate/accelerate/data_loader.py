"""Loaders that share their data between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from drivetrain.config.enums import RNGType
from drivetrain.data import prepare
from drivetrain.data.dispatch import DispatchLoader as DataLoaderDispatcher
from drivetrain.data.iterable import IterableDatasetShard as IterableDatasetShard
from drivetrain.data.loader import PreparedLoader as DataLoaderShard
from drivetrain.data.samplers import BatchSamplerShard as BatchSamplerShard
from drivetrain.data.samplers import SeedableRandomSampler as SeedableRandomSampler
from drivetrain.data.samplers import SkipBatchSampler as SkipBatchSampler
from drivetrain.data.samplers import get_sampler as get_sampler
from drivetrain.data.skip import skip_first_batches as skip_first_batches
from drivetrain.training import rng
from torch.utils.data import DataLoader

from accelerate import _current
from accelerate._names import attach

__all__ = [
    "BatchSamplerShard", "DataLoaderDispatcher", "DataLoaderShard", "IterableDatasetShard", "SeedableRandomSampler",
    "SkipBatchSampler", "get_sampler", "prepare_data_loader", "skip_first_batches",
]  # fmt: skip


def prepare_data_loader(
    dataloader: DataLoader,
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Sequence[str | RNGType] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
) -> DataLoaderShard:
    """A loader that gives this process its share of ``dataloader``; see `drivetrain.data.prepare.prepare_data_loader`.

    The processes are those of the run, and the windows that its end closes are those of the newest Accelerator.
    """
    world = _current.world()
    return prepare.prepare_data_loader(
        dataloader, device=device, num_processes=num_processes, process_index=process_index,
        split_batches=split_batches, put_on_device=put_on_device, rng_types=rng_types,
        dispatch_batches=dispatch_batches, even_batches=even_batches, slice_fn_for_dispatch=slice_fn_for_dispatch,
        use_seedable_sampler=use_seedable_sampler, data_seed=data_seed, non_blocking=non_blocking,
        use_stateful_dataloader=use_stateful_dataloader, torch_device_mesh=torch_device_mesh, comm=world.comm,
        loops=_current.current_loops(), synchronize=partial(rng.synchronize, comm=world.comm, platform=world.platform),
    )  # fmt: skip


__getattr__, __dir__ = attach(__name__)
