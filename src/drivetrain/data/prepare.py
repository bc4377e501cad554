"""From the user's loader to the one of this rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from drivetrain.config.enums import RNGType
from drivetrain.core.errors import ConfigError, InputError
from drivetrain.data.dispatch import DispatchLoader
from drivetrain.data.loader import PreparedLoader
from drivetrain.data.plan import Ranks
from drivetrain.data.rounds import Dealer
from drivetrain.data.sharing import Sharing, is_stream
from drivetrain.data.stateful import stateful_copy
from drivetrain.runtime.accumulation import Loops
from drivetrain.runtime.comm import Comm, LocalComm

Synchronize = Callable[[list[RNGType]], None]


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
    *,
    comm: Comm | None = None,
    loops: Loops | None = None,
    synchronize: Synchronize | None = None,
) -> PreparedLoader:
    """A loader that gives this rank its share of ``dataloader``, which is left as it is.

    Args: those that are not listed are fields of `drivetrain.config.handlers.DataLoaderConfiguration`.
        device: where batches go, if ``put_on_device``.
        num_processes: ranks that share the data; None: all of ``comm``.
        process_index: which of them this is; None: the rank in ``comm``.
        rng_types: random states that rank 0 gives to all at the start of each epoch. The order agrees without it.
        slice_fn_for_dispatch: ``f(batch, slice, process_index=..., num_processes=...)`` cuts a batch for a rank.
        torch_device_mesh: ranks that differ in its dimensions ``tp`` and ``cp`` only get the same batches.
        comm: the ranks that read together. None: this process alone.
        loops: where iterations are announced. None: nowhere.
        synchronize: carries out ``rng_types``.

    Raises:
        InputError: ``dataloader`` is no torch `DataLoader`.
        ConfigError: the options contradict one another or the loader.
        MissingDependency: ``use_stateful_dataloader`` without torchdata.
    """
    if isinstance(dataloader, PreparedLoader):
        return dataloader
    _check_type(dataloader)
    comm = LocalComm() if comm is None else comm
    ranks = _data_ranks(comm, num_processes, process_index, torch_device_mesh)
    dispatch = _dispatches(dataloader, dispatch_batches, put_on_device) and max(ranks.num, comm.world_size) > 1
    readers = LocalComm() if dispatch else comm
    sharing = Sharing(ranks, readers, split_batches, even_batches, dispatch, use_seedable_sampler, data_seed)
    settings = vars(sharing.parts(stateful_copy(dataloader) if use_stateful_dataloader else dataloader)) | {
        "loops": Loops() if loops is None else loops,
        "device": device if put_on_device else None,
        "non_blocking": non_blocking,
        "refresh": _refresh(rng_types, comm, synchronize),
    }
    if not dispatch:
        return PreparedLoader(**settings, comm=readers)
    size = dataloader.batch_size
    dealer = Dealer(ranks.num, split_batches, dataloader.drop_last, size, slice_fn_for_dispatch)
    return DispatchLoader(**settings, ranks=comm, dealer=dealer, share=ranks.rank)


def _check_type(dataloader: Any) -> None:
    if not isinstance(dataloader, DataLoader):
        raise InputError(
            f"a {type(dataloader).__name__} cannot be prepared as a loader: give a torch.utils.data.DataLoader. An "
            "iterable of batches can be wrapped in one with batch_size=None."
        )


def _data_ranks(comm: Comm, num_processes: int | None, process_index: int | None, mesh: Any) -> Ranks:
    """The ranks that see different data."""
    num = comm.world_size if num_processes is None else num_processes
    rank = comm.rank if process_index is None else process_index
    if mesh is None:
        return Ranks(num, rank)
    sizes: dict[str, int] = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
    alike = sizes.get("tp", 1) * sizes.get("cp", 1)
    return Ranks(sizes.get("dp_shard", 1) * sizes.get("dp_replicate", 1), rank // alike)


def _dispatches(dataloader: DataLoader, wanted: bool | None, put_on_device: bool) -> bool:
    if wanted and not put_on_device:
        raise ConfigError(
            "dispatch_batches=True needs put_on_device=True: rank 0 hands out batches that are on their way to the "
            "devices. Leave device placement on, or use dispatch_batches=False."
        )
    return put_on_device and is_stream(dataloader) if wanted is None else wanted


def _refresh(
    rng_types: Sequence[str | RNGType] | None, comm: Comm, synchronize: Synchronize | None
) -> Callable[[], None] | None:
    """What shares random states at the start of each epoch; a generator of the order agrees anyway."""
    kinds = [kind for kind in map(RNGType, rng_types or ()) if kind is not RNGType.GENERATOR]
    if not kinds or comm.world_size == 1:
        return None
    if synchronize is None:
        raise ConfigError(f"rng_types={[str(kind) for kind in kinds]} is to be shared, but nothing was given to do so.")
    return lambda: synchronize(kinds)
