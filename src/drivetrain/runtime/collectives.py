"""The collectives a user calls, over any nesting of tensors. Each is checked before it starts: all ranks, same call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from drivetrain.core.errors import ConfigError, InputError
from drivetrain.core.tree import is_record, leaves, map_leaves
from drivetrain.runtime.comm import Comm

_REDUCTIONS = ("sum", "mean", "max", "min", "none")


def is_tensor(x: Any) -> bool:
    """Whether ``x`` is a `torch.Tensor`."""
    return isinstance(x, Tensor)


def all_tensors(data: Any) -> bool:
    """Whether every leaf of ``data`` is a tensor."""
    return all(is_tensor(x) for x in leaves(data))


def gather(data: Any, comm: Comm) -> Any:
    """Every tensor of ``data``, concatenated along dimension 0 over the ranks, by rank; a 0-d tensor counts as ``[1]``.

    On one rank ``data`` itself comes back.

    Raises:
        InputError: a leaf is not a tensor.
        CollectiveError: on every rank, when structures, shapes or dtypes differ between the ranks.
    """
    if comm.world_size == 1:
        return data
    _check_tensors("gather", data)
    comm.agree("gather", describe(data))
    return _map(lambda x: torch.cat(comm.all_gather(x.reshape(1) if x.dim() == 0 else x)), data)


def gather_object(obj: Any, comm: Comm) -> list[Any]:
    """The lists of all ranks joined, by rank; an object that is no list counts as a list of one. Objects stay whole.

    On several ranks the objects travel pickled, between the processes of this run only.
    """
    return [item for own in _gather_whole(obj, comm) for item in (own if isinstance(own, list) else [own])]


def _gather_whole(obj: Any, comm: Comm) -> list[Any]:
    if comm.world_size == 1:
        return [obj]
    comm.agree("gather_object", "")
    return comm.all_gather_object(obj)


def broadcast(data: Any, comm: Comm, src: int = 0) -> Any:
    """Every tensor of ``data`` as it is on rank ``src``. The tensors given are left alone.

    Raises:
        InputError: a leaf is not a tensor.
        CollectiveError: on every rank, when structures, shapes or dtypes differ between the ranks.
    """
    if comm.world_size == 1:
        return data
    _check_rank("broadcast", src, comm)
    _check_tensors("broadcast", data)
    comm.agree("broadcast", f"{describe(data)} from {src}")
    return _map(lambda x: comm.broadcast(x, src), data)


def broadcast_object_list(objects: list[Any], comm: Comm, src: int = 0) -> list[Any]:
    """Replace the items of ``objects``, in place, by those of rank ``src``. Returns the list."""
    if comm.world_size > 1:
        _check_rank("broadcast_object_list", src, comm)
        comm.agree("broadcast_object_list", f"{len(objects)} objects from {src}")
        objects[:] = comm.broadcast_object(list(objects), src)
    return objects


def reduce(data: Any, comm: Comm, reduction: str = "sum", scale: float = 1.0) -> Any:
    """Every tensor of ``data``, combined element by element over the ranks, times ``scale``; the input is left alone.

    ``reduction``: sum, mean, max, min, or none (each rank keeps its own values). The mean of integers is a float.

    Raises:
        ConfigError: the reduction is unknown.
        InputError: a leaf is not a tensor.
        CollectiveError: on every rank, when structures, shapes or dtypes differ between the ranks.
    """
    if reduction not in _REDUCTIONS:
        raise ConfigError(f"reduction={reduction!r} is unknown. Use one of: {', '.join(_REDUCTIONS)}.")
    _check_tensors("reduce", data)
    if comm.world_size > 1 and reduction != "none":
        comm.agree("reduce", f"{reduction} of {describe(data)}")
    return _map(lambda x: _reduce_one(x, comm, reduction, scale), data)


def _reduce_one(x: Tensor, comm: Comm, reduction: str, scale: float) -> Tensor:
    if reduction == "none":
        out = x.clone()
    elif reduction == "mean":
        out = comm.all_reduce(x if x.is_floating_point() or x.is_complex() else x.float()) / comm.world_size
    elif x.dtype is torch.bool:  # a sum of truth values is a count
        out = comm.all_reduce(x.to(torch.int64), reduction)
        out = out if reduction == "sum" else out.bool()
    else:
        out = comm.all_reduce(x, reduction)
    return out if scale == 1.0 else out * scale


def pad_across_processes(data: Any, comm: Comm, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Every tensor of ``data``, padded along ``dim`` to the longest of all ranks, keeping its dtype.

    A tensor that has no dimension ``dim`` comes back as it is. ``pad_first``: the padding goes to the front.

    Raises:
        CollectiveError: on every rank, when structures, dtypes or numbers of dimensions differ between the ranks.
    """
    if comm.world_size == 1:
        return data
    _check_tensors("pad_across_processes", data)
    comm.agree("pad_across_processes", f"{describe(data, sizes=False)} along {dim}")
    return _map(lambda x: _pad_one(x, comm, dim, pad_index, pad_first), data)


def _pad_one(x: Tensor, comm: Comm, dim: int, pad_index: float, pad_first: bool) -> Tensor:
    if not -x.dim() <= dim < x.dim() or x.is_nested:
        return x
    dim %= x.dim()
    size = torch.tensor([x.shape[dim]], dtype=torch.int64, device=x.device)
    missing = int(comm.all_reduce(size, "max")) - x.shape[dim]
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[dim] = missing
    padding = torch.full(shape, pad_index, dtype=x.dtype, device=x.device)
    return torch.cat([padding, x] if pad_first else [x, padding], dim=dim)


def describe(data: Any, *, sizes: bool = True) -> str:
    """Structure, shapes and dtypes of nested tensors as text, equal on two ranks exactly when they fit together."""
    if isinstance(data, Tensor):
        shape = list(data.shape) if sizes else f"{data.dim()} dims"
        return f"{str(data.dtype).removeprefix('torch.')} of shape {shape}" if sizes else f"{data.dtype} of {shape}"
    if isinstance(data, list | tuple):
        return f"{type(data).__name__}({', '.join(describe(item, sizes=sizes) for item in data)})"
    if hasattr(data, "items"):
        return f"{type(data).__name__}({', '.join(f'{k!r}: {describe(v, sizes=sizes)}' for k, v in data.items())})"
    if is_record(data):
        values = (f"{f.name}: {describe(getattr(data, f.name), sizes=sizes)}" for f in fields(data))
        return f"{type(data).__name__}({', '.join(values)})"
    return type(data).__name__


def _map(fn: Callable[[Tensor], Tensor], data: Any) -> Any:
    return map_leaves(fn, data, leaf=is_tensor)


def _check_tensors(name: str, data: Any) -> None:
    if isinstance(data, Tensor):
        return
    for leaf in leaves(data):
        if not isinstance(leaf, Tensor):
            raise InputError(
                f"{name} got a {type(leaf).__name__} ({leaf!r:.60}) where only tensors, and lists, tuples, mappings "
                "and dataclasses of tensors, can be worked on. For other objects there is gather_object (or "
                "broadcast_object_list)."
            )


def _check_rank(name: str, src: int, comm: Comm) -> None:
    if not 0 <= src < comm.world_size:
        raise ConfigError(f"{name} from rank {src}, but the ranks are 0 to {comm.world_size - 1}.")
