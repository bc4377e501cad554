"""Batches on their device, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from drivetrain.core.tree import map_leaves, rebuild, rebuild_mapping

Device = torch.device | str | int


def send_to_device(
    tensor: Any, device: Device, non_blocking: bool = False, skip_keys: str | Sequence[str] | None = None
) -> Any:
    """``tensor``, a tensor or any nesting of containers, with everything that can move on ``device``.

    What moves: tensors of any shape and dtype, and objects that have a method ``to`` (those are not looked into). Lists,
    tuples, named tuples, mappings (a `defaultdict` keeps its factory) and dataclasses are rebuilt with their own type;
    the ones given stay as they are. Everything else is handed on.

    Args:
        non_blocking: whether copies from pinned memory may still be under way on return.
        skip_keys: keys of mappings, at any depth, whose values are not moved.
    """
    if not skip_keys:
        return mover(device, non_blocking)(tensor)
    skipped = (skip_keys,) if isinstance(skip_keys, str) else tuple(skip_keys)
    move = mover(device, non_blocking)

    def walk(data: Any) -> Any:
        if isinstance(data, Mapping) and not hasattr(data, "to"):
            return rebuild_mapping(data, {key: v if key in skipped else walk(v) for key, v in data.items()})
        if isinstance(data, list | tuple) and not hasattr(data, "to"):
            return rebuild(data, (walk(item) for item in data))
        return move(data)

    return walk(tensor)


def mover(device: Device, non_blocking: bool = False) -> Callable[[Any], Any]:
    """`send_to_device` for one device, made once and called for each batch."""
    where = device if isinstance(device, torch.device) else torch.device(device)

    def move_leaf(leaf: Any) -> Any:
        try:
            return leaf.to(where, non_blocking=non_blocking)
        except TypeError:  # the user's own `to`, which may not know the keyword
            return leaf.to(where)

    def move(data: Any) -> Any:
        kind = type(data)
        if kind is Tensor:
            # Comparing costs a fifth of a `to` that finds nothing to do.
            return data if data.device == where else data.to(where, non_blocking=non_blocking)
        if kind is dict:
            return {key: move(value) for key, value in data.items()}
        if kind is list:
            return [move(item) for item in data]
        if kind is tuple:
            return tuple([move(item) for item in data])
        if kind is str or kind is int or kind is float:
            return data
        return map_leaves(move_leaf, data, leaf=_is_movable)

    return move


def _is_movable(data: Any) -> bool:
    return isinstance(data, Tensor) or (hasattr(data, "to") and not isinstance(data, type))
