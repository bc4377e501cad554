"""Which process does what: barriers, main process first, sharing a list of inputs, printing once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from drivetrain.core.errors import CollectiveError, ConfigError, InputError
from drivetrain.core.tree import rebuild, rebuild_mapping
from drivetrain.runtime.comm import Comm
from drivetrain.runtime.topology import Topology


class ProcessControl:
    """Acts on the topology of a run and the comm of its ranks."""

    def __init__(self, topology: Topology, comm: Comm) -> None:
        self.topology, self.comm = topology, comm

    def wait_for_everyone(self) -> None:
        """Return when every rank has called this.

        Raises:
            CollectiveError: a rank makes another call instead, or does not come in time; which, and its line.
        """
        self.comm.barrier()

    @contextmanager
    def first(self, goes_first: bool) -> Iterator[None]:
        """The body runs on the ranks that go first, then on the others. All ranks enter.

        Raises:
            CollectiveError: on the ranks that wait, when the body failed on one that goes first; with its message, and
                where it failed the error itself. So no rank goes on as if what it waits for had been done.
        """
        if not goes_first:
            self._pass(None)
            yield
            return
        try:
            yield
        except BaseException as error:
            self._pass(error)
            raise
        self._pass(None)

    def _pass(self, error: BaseException | None) -> None:
        """The point between those that go first and the others."""
        notes = self.comm.agree("main_process_first", "", note=(int(error is not None), 0))
        failed = [rank for rank, (note, _) in enumerate(notes) if note]
        if failed and self.comm.world_size > 1:
            texts = self.comm.all_gather_object(f"{type(error).__name__}: {error}" if error is not None else "")
            if error is None:
                raise CollectiveError(
                    f"rank {failed[0]}, which goes first, failed, so what this rank waits for was not done: "
                    f"{texts[failed[0]]}"
                )

    def only(self, function: Callable[..., Any], runs_here: Callable[[], bool]) -> Callable[..., Any]:
        """``function`` where ``runs_here()`` is true at the call; elsewhere it does nothing and returns None."""

        @functools.wraps(function)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if runs_here() else None

        return chosen

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print`, on the first process of each machine only."""
        if self.topology.is_local_main:
            print(*args, **kwargs)

    @contextmanager
    def split(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This rank's share of ``inputs``; see `share`."""
        yield share(inputs, self.topology.rank, self.topology.world_size, apply_padding)


def share(inputs: Any, rank: int, world_size: int, apply_padding: bool = False) -> Any:
    """The contiguous part of ``inputs`` that belongs to ``rank``; the first ranks get one item more where it is uneven.

    Lists, tuples, tensors and NumPy arrays (along dimension 0), data sets (a ``datasets.Dataset`` by its ``select``, a
    map-style torch data set as a `Subset`), and mappings of those, whose values must be equally long. A mapping is
    returned as a new one; a value in it that cannot be shared, such as a string, is an error. Anything else, such as a
    single string, is given to each rank whole.

    Args:
        apply_padding: whether shorter shares are filled up with the last item of ``inputs``, so that all are equal.

    Raises:
        InputError: a mapping holds values of different lengths, or one that cannot be shared.
    """
    if world_size == 1:
        return inputs
    if isinstance(inputs, Mapping):
        return _share_mapping(inputs, rank, world_size, apply_padding)
    if not _can_share(inputs):
        return inputs
    return _take(inputs, _rows(len(inputs), rank, world_size, apply_padding))


def _rows(length: int, rank: int, world_size: int, apply_padding: bool) -> Sequence[int]:
    """The rows of ``rank``: a range, unless padding repeats the last one."""
    small, extra = divmod(length, world_size)
    start = rank * small + min(rank, extra)
    rows = range(start, start + small + (rank < extra))
    missing = -(-length // world_size) - len(rows) if apply_padding else 0
    return [*rows, *[length - 1] * missing] if missing else rows


def _share_mapping(inputs: Mapping, rank: int, world_size: int, apply_padding: bool) -> Any:
    wrong = [key for key, value in inputs.items() if not _can_share(value) and not isinstance(value, Mapping)]
    if wrong:
        kinds = ", ".join(f"{key!r} is a {type(inputs[key]).__name__}" for key in wrong)
        raise InputError(
            f"split_between_processes cannot share a mapping in which {kinds}. Give each key a list, tuple, tensor or "
            "array with one entry an input."
        )
    lengths = {key: len(value) for key, value in inputs.items() if not isinstance(value, Mapping)}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"split_between_processes got a mapping with values of different lengths: {lengths}.")
    return rebuild_mapping(inputs, {k: share(v, rank, world_size, apply_padding) for k, v in inputs.items()})


def _can_share(data: Any) -> bool:
    if isinstance(data, str | bytes):
        return False
    if isinstance(data, list | tuple | range):
        return True
    if hasattr(data, "shape"):
        return len(data.shape) > 0
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _take(data: Any, rows: Sequence[int]) -> Any:
    whole = isinstance(rows, range)
    part = slice(rows.start, rows.stop) if isinstance(rows, range) else slice(0, 0)
    if isinstance(data, list | tuple):
        taken = [data[i] for i in rows]
        return tuple(taken) if hasattr(data, "_fields") else rebuild(data, iter(taken))
    if hasattr(data, "iloc"):  # tables of pandas, which take labels in brackets
        return data.iloc[part] if whole else data.iloc[rows]
    if isinstance(data, torch.Tensor) or hasattr(data, "shape") and hasattr(data, "dtype"):
        return data[part] if whole else data[rows]
    if hasattr(data, "select"):
        return data.select(rows)
    if isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, rows)  # pyright: ignore[reportArgumentType]
    if isinstance(data, Sequence) and whole:
        return data[part]
    return [data[i] for i in rows]
