"""Find the largest batch that memory allows, and give memory back."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

from drivetrain.core.errors import InputError, UsageError
from drivetrain.runtime.log import get_logger

_OUT_OF_MEMORY = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
)
"""What the allocators of torch's devices say when they have no memory left."""

logger = get_logger(__name__)


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Whether ``exception`` says that a device, or the machine, had too little memory for a tensor."""
    if isinstance(exception, torch.OutOfMemoryError):
        return True
    return isinstance(exception, RuntimeError) and any(text in str(exception) for text in _OUT_OF_MEMORY)


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give the memory that no tensor uses back to the driver of this process's device.

    Args:
        garbage_collection: whether objects that only refer to each other are collected first.
    """
    if garbage_collection:
        gc.collect()
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.accelerator.is_available():
        return
    empty_cache = getattr(torch.get_device_module(device), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """Collect garbage and empty the device's cache. Returns one None for each of ``objects``.

    Overwrite your names with them, so that nothing holds the objects: ``a, b = release_memory(a, b)``.
    """
    given = len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * given


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Callable[..., Any]:
    """Decorator: call ``function(batch_size, ...)`` with smaller and smaller batches until one fits into memory.

        @find_executable_batch_size(starting_batch_size=64)
        def train(batch_size, epochs):
            ...
        train(epochs=3)

    Every call of the decorated function starts at ``starting_batch_size`` again. Errors that have nothing to do with
    memory are passed on. What ``function`` builds has to be built inside of it, so that it is gone before the next try.
    On several ranks all of them must run out of memory together, as they do when they run the same program.

    Args:
        function: takes the batch size as its first argument.
        starting_batch_size: tried first.
        reduce_batch_size_fn: gives the next size to try, from the last one (or from nothing, if it takes no argument).
            None: nine tenths of the last one.

    Raises:
        UsageError: not even a batch of one sample fits.
        InputError: the caller gives the batch size, which is given here.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    following = _following(reduce_batch_size_fn)

    @functools.wraps(function)
    def search(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, args, kwargs)
        batch_size = starting_batch_size
        while batch_size > 0:
            clear_device_cache(garbage_collection=True)
            try:
                return function(batch_size, *args, **kwargs)
            except RuntimeError as error:
                if not should_reduce_batch_size(error):
                    raise
            # Out here the error is gone, and with it the frames that kept the tensors of the failed try alive.
            smaller = following(batch_size)
            if smaller >= batch_size:
                raise UsageError(f"reduce_batch_size_fn gave {smaller} after {batch_size}, which is no smaller batch.")
            logger.info("batch size %d does not fit into memory, %d comes next", batch_size, smaller)
            batch_size = smaller
        raise UsageError(
            f"no executable batch size was found for {_name(function)}: from {starting_batch_size} down, every batch "
            "was too large for the memory. Make the model or the samples smaller."
        )

    return search


def _following(reduce: Callable[..., int] | None) -> Callable[[int], int]:
    if reduce is None:
        return lambda size: int(size * 0.9)
    try:
        takes_size = len(inspect.signature(reduce).parameters) > 0
    except ValueError:  # a function written in C that tells nothing about itself
        takes_size = True
    return (lambda size: int(reduce(size))) if takes_size else (lambda size: int(reduce()))


def _check_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call that gives the batch size itself: Python's own message would count one argument too many."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    first = next(iter(signature.parameters), None)
    if first is None:
        raise InputError(f"{_name(function)} takes no argument, but its first one has to be the batch size.")
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    if first in kwargs or (len(args) + 1 > len(places) and not takes_more):
        shown = ", ".join(p.name for p in places[1:])
        raise InputError(
            f"the batch size of {_name(function)} was given in the call, but the decorator gives it. Call "
            f"{_name(function)}({shown})."
        )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
