"""Walk nested containers of leaves, rebuilding each container with its own type."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def is_namedtuple(data: Any) -> bool:
    """Whether ``data`` is an instance of a ``collections.namedtuple`` or ``typing.NamedTuple`` class."""
    return isinstance(data, tuple) and hasattr(data, "_asdict") and hasattr(data, "_fields")


def rebuild(like: Any, items: Iterator[Any]) -> Any:
    """A list or tuple of the same type as ``like`` that holds ``items``."""
    return type(like)(*items) if is_namedtuple(like) else type(like)(items)


def rebuild_mapping(like: Mapping, items: dict) -> Any:
    """A mapping of the same type as ``like`` that holds ``items``; a `defaultdict` keeps its factory."""
    if type(like) is dict:
        return items
    if isinstance(like, defaultdict):
        return type(like)(like.default_factory, items)
    return type(like)(items)  # type: ignore[call-arg]


def is_record(data: Any) -> bool:
    """Whether ``data`` is an instance (not the class) of a dataclass."""
    return is_dataclass(data) and not isinstance(data, type)


def map_leaves(fn: Callable[[Any], Any], data: Any, *, leaf: Callable[[Any], bool]) -> Any:
    """Apply ``fn`` to every leaf that ``leaf`` accepts, at any depth; everything else is kept as it is.

    Lists, tuples, named tuples, mappings and dataclasses are rebuilt with their own type, so the caller's containers
    are never changed. A value that ``leaf`` accepts is not looked into.
    """
    if leaf(data):
        return fn(data)
    if isinstance(data, list | tuple):
        return rebuild(data, (map_leaves(fn, item, leaf=leaf) for item in data))
    if isinstance(data, Mapping):
        return rebuild_mapping(data, {key: map_leaves(fn, value, leaf=leaf) for key, value in data.items()})
    if is_record(data):
        return replace_fields(data, {f.name: map_leaves(fn, getattr(data, f.name), leaf=leaf) for f in fields(data)})
    return data


def replace_fields(record: Any, values: dict[str, Any]) -> Any:
    """A shallow copy of a dataclass instance with other field values; neither ``__init__`` nor ``__post_init__`` runs.

    A value that has been made (by the user's constructor) is moved, not made anew, so checks and conversions of the
    constructor must not happen a second time.
    """
    out = copy.copy(record)
    for name, value in values.items():
        object.__setattr__(out, name, value)  # frozen dataclasses too
    return out


def leaves(data: Any, *, leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Every leaf at any depth, in order. With ``leaf``, only those it accepts (it is asked before looking inside)."""
    if leaf is not None and leaf(data):
        yield data
    elif isinstance(data, list | tuple):
        for item in data:
            yield from leaves(item, leaf=leaf)
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from leaves(value, leaf=leaf)
    elif is_record(data):
        for f in fields(data):
            yield from leaves(getattr(data, f.name), leaf=leaf)
    elif leaf is None:
        yield data
