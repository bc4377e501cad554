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

    What moves: tensors of any shape and dtype, and objects that have a method ``to`` (which are not looked into).
    Lists, tuples, named tuples, mappings (a `defaultdict` keeps its factory) and dataclasses are rebuilt with their own
    type; the ones given stay as they are. Everything else is handed on.

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
    """`send_to_device` for one device, made once and called for each batch; a batch that is there already is itself."""
    where = device if isinstance(device, torch.device) else torch.device(device)

    on_cpu = where.type == "cpu"

    def there(data: Any) -> bool:
        # Finding that nothing has to move costs less than moving nothing, and a batch made on the CPU for the CPU is
        # the commonest case there is.
        kind = type(data)
        if kind is Tensor:
            return data.is_cpu if on_cpu else data.device == where
        if kind is dict:
            data = data.values()
        elif kind is not list and kind is not tuple:
            return kind is str or kind is int or kind is float
        for item in data:  # a loop: `all` with a generator costs twice as much
            if not there(item):
                return False
        return True

    def move_leaf(leaf: Any) -> Any:
        try:
            return leaf.to(where, non_blocking=non_blocking)
        except TypeError:  # the user's own `to`, which may not know the keyword
            return leaf.to(where)

    return lambda data: data if there(data) else map_leaves(move_leaf, data, leaf=_is_movable)


def _is_movable(data: Any) -> bool:
    return isinstance(data, Tensor) or (hasattr(data, "to") and not isinstance(data, type))
