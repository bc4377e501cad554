"""The rows of a batch, one or more a sample: how many there are, cut apart, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.core.errors import InputError
from drivetrain.core.tree import is_namedtuple, is_record, leaves, map_leaves, rebuild, rebuild_mapping, replace_fields


def find_batch_size(data: Any) -> int | None:
    """Rows of a batch: the length of the first array (tensor, NumPy array) that has dimensions, at any depth.

    Without one, the length of the first list of strings or numbers; None if there is neither.
    """
    for leaf in leaves(data):
        if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim:
            return len(leaf)
    return _first_list(data)


def _first_list(data: Any) -> int | None:
    if isinstance(data, list | tuple) and not is_namedtuple(data):
        if data and not any(isinstance(item, list | tuple | Mapping) for item in data):
            return len(data)
        children: Sequence[Any] = data
    elif isinstance(data, Mapping):
        children = list(data.values())
    elif isinstance(data, tuple):
        children = data
    elif is_record(data):
        children = list(vars(data).values())
    else:
        return None
    return next((rows for rows in map(_first_list, children) if rows is not None), None)


def slice_rows(batch: Any, start: int, stop: int, rows: int) -> Any:
    """Rows ``start`` to ``stop`` of a ``batch`` of ``rows`` samples, in the same structure.

    Cut are tensors and NumPy arrays ``[rows, ...]`` and lists with one entry a row; everything else (flags, numbers,
    tensors of other lengths) belongs to the whole batch and is kept.

    Raises:
        InputError: nothing in ``batch`` has one entry a row.
    """
    cut = [0]

    def one(part: Any) -> Any:
        cut[0] += 1
        return part[start:stop]

    out = map_leaves(one, batch, leaf=lambda part: _has_rows(part, rows))
    if not cut[0]:
        raise InputError(
            f"a batch of type {type(batch).__name__} holds nothing with {rows} rows, so it cannot be cut for ranks. "
            "Let the collate function give tensors or lists with one entry a sample, or use split_batches=False."
        )
    return out


def _has_rows(part: Any, rows: int) -> bool:
    """Whether ``part`` is to be cut by rows itself; a list of arrays that are cut is only a container."""
    if isinstance(part, Tensor | np.ndarray):
        return part.ndim > 0 and len(part) == rows
    if type(part) not in (list, tuple) or len(part) != rows:
        return False
    return not any(_holds_rows(item, rows) for item in part)


def _holds_rows(data: Any, rows: int) -> bool:
    return any(isinstance(leaf, Tensor | np.ndarray) and leaf.ndim > 0 and len(leaf) == rows for leaf in leaves(data))


def concatenate_rows(batches: Sequence[Any], rows: Sequence[int]) -> Any:
    """One batch out of several of the same structure, batch ``i`` with ``rows[i]`` samples.

    What has one entry a row is put together; what belongs to a whole batch must be equal in all of them.

    Raises:
        InputError: the batches cannot be put together: structures, trailing shapes or whole-batch values differ.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if any(type(other) is not type(first) for other in batches[1:]):
        raise InputError(f"batches of types {sorted({type(b).__name__ for b in batches})} cannot be put together.")
    if all(_has_rows(batch, n) for batch, n in zip(batches, rows, strict=True)):
        return _joined(batches)
    if isinstance(first, Mapping):
        return rebuild_mapping(first, {key: concatenate_rows([b[key] for b in batches], rows) for key in first})
    if isinstance(first, list | tuple):
        if len({len(batch) for batch in batches}) > 1:
            raise InputError(f"lists of {[len(batch) for batch in batches]} entries cannot be put together.")
        return rebuild(first, (concatenate_rows(list(parts), rows) for parts in zip(*batches, strict=True)))
    if is_record(first):
        parts = {f.name: [getattr(batch, f.name) for batch in batches] for f in fields(first)}
        return replace_fields(first, {name: concatenate_rows(values, rows) for name, values in parts.items()})
    return _same(batches)


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor | np.ndarray):
        if len({tuple(part.shape[1:]) for part in parts}) > 1:
            raise InputError(f"arrays of shapes {[list(part.shape) for part in parts]} cannot be put together.")
        return torch.cat(list(parts)) if isinstance(first, Tensor) else np.concatenate(list(parts))
    return type(first)(item for part in parts for item in part)


def _same(parts: Sequence[Any]) -> Any:
    """The value that all ``parts`` share."""
    first = parts[0]
    if isinstance(first, Tensor):
        same = all(part.shape == first.shape and torch.equal(part, first) for part in parts[1:])
    elif isinstance(first, np.ndarray):
        same = all(np.array_equal(part, first) for part in parts[1:])
    elif isinstance(first, str | bytes | int | float | complex | None):
        same = all(part == first for part in parts[1:])
    else:
        same = False  # an object of the user's: only its own class knows how to put two of them together
    if not same:
        raise InputError(f"values of type {type(first).__name__} that differ between batches cannot be put together.")
    return first
