"""Collectives and helpers over nested tensors, as functions that need no Accelerator but act in the process's world."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from drivetrain.config.handlers import TensorInformation
from drivetrain.core.errors import CollectiveError, ConfigError, InputError
from drivetrain.core.tree import is_namedtuple as is_namedtuple
from drivetrain.core.tree import leaves, map_leaves, rebuild, rebuild_mapping
from drivetrain.data.placement import send_to_device as send_to_device
from drivetrain.precision.autocast import convert_to_fp32
from drivetrain.runtime import collectives
from drivetrain.runtime.comm import Comm
from torch import Tensor

from accelerate import _current
from accelerate._names import attach

DistributedOperationException = CollectiveError

TENSOR_TYPE_TO_INT = {
    torch.float: 1, torch.double: 2, torch.half: 3, torch.bfloat16: 4, torch.uint8: 5, torch.int8: 6, torch.int16: 7,
    torch.int32: 8, torch.int64: 9, torch.bool: 10,
}  # fmt: skip
TENSOR_INT_TO_DTYPE = {number: dtype for dtype, number in TENSOR_TYPE_TO_INT.items()}


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor has no one length to pad to, and comes back as it is."""


def _comm() -> Comm:
    return _current.world().comm


# -- between the processes --------------------------------------------------------------------------------------------


def gather(tensor: Any) -> Any:
    """Each tensor of ``tensor`` (at any depth), concatenated along dimension 0 over the processes, in their order.

    ``[n, ...]`` becomes ``[num_processes * n, ...]``; a 0-d tensor counts as ``[1]``. All processes call and get it.

    Raises:
        InputError: a leaf is not a tensor.
        CollectiveError: on every process, when structures, shapes or dtypes differ.
    """
    return collectives.gather(tensor, _comm())


def gather_object(object: Any) -> list[Any]:
    """The lists of all processes joined, in their order; an object that is no list counts as a list of one."""
    return collectives.gather_object(object, _comm())


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Each tensor of ``tensor`` as it is on process ``from_process``; the tensors given are left alone.

    Raises:
        InputError: a leaf is not a tensor.
        CollectiveError: on every process, when structures, shapes or dtypes differ.
    """
    return collectives.broadcast(tensor, _comm(), from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the items of ``object_list``, in place, by those of process ``from_process``. Returns the list."""
    return collectives.broadcast_object_list(object_list, _comm(), from_process)


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Each tensor of ``tensor``, combined element by element over the processes, times ``scale``.

    Shapes stay, and the tensors given are left alone. ``reduction``: mean, sum, max, min or none. (The method of the
    Accelerator sums where nothing is said.)

    Raises:
        ConfigError: the reduction is unknown.
        CollectiveError: on every process, when structures, shapes or dtypes differ.
    """
    return collectives.reduce(tensor, _comm(), reduction, scale)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
    """Each tensor of ``tensor``, padded with ``pad_index`` along ``dim`` to the longest of all; the dtype stays."""
    return collectives.pad_across_processes(tensor, _comm(), dim, pad_index, pad_first)


def gather_tensor_shape(tensor: Tensor | None) -> tuple[torch.Size, int]:
    """Shape, and number of the dtype in `TENSOR_INT_TO_DTYPE`, of the tensor that one process gives and others do not.

    Raises:
        ConfigError: on every process, when not exactly one of them gives a tensor.
    """
    shape, dtype, _ = _only_tensor(tensor)
    return shape, TENSOR_TYPE_TO_INT[dtype]


def copy_tensor_to_devices(tensor: Tensor | None = None) -> Tensor:
    """The tensor (any shape) that one process gives, on every process, on its own device; the others give None.

    Raises:
        ConfigError: on every process, when not exactly one of them gives a tensor.
    """
    shape, dtype, source = _only_tensor(tensor)
    here = _current.world().topology.device
    mine = torch.zeros(shape, dtype=dtype, device=here) if tensor is None else tensor.to(here)
    return _comm().broadcast(mine, source)


def _only_tensor(tensor: Tensor | None) -> tuple[torch.Size, torch.dtype, int]:
    comm = _comm()
    described = comm.all_gather_object(None if tensor is None else (tuple(tensor.shape), tensor.dtype))
    given = [rank for rank, one in enumerate(described) if one is not None]
    if len(given) != 1:
        who = given or "none of them"
        raise ConfigError(f"one process has to give a tensor and the others None, but {who} gave one.")
    shape, dtype = described[given[0]]
    return torch.Size(shape), dtype, given[0]


def verify_operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` itself: collectives of this library are checked before they start, with or without a debug mode."""
    return function


chained_operation = verify_operation


@contextmanager
def GatheredParameters(  # noqa: N802 - the contract's name
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> Iterator[None]:
    """Parameters are whole inside, as they are everywhere when nothing is sharded."""
    yield


# -- nested tensors ---------------------------------------------------------------------------------------------------


def is_torch_tensor(tensor: Any) -> bool:
    """Whether this is a `torch.Tensor`."""
    return isinstance(tensor, Tensor)


def is_torch_xpu_tensor(tensor: Any) -> bool:
    """Whether this is a `torch.Tensor` on an XPU."""
    return isinstance(tensor, Tensor) and tensor.device.type == "xpu"


def is_tensor_information(tensor_info: Any) -> bool:
    """Whether this is a `TensorInformation`."""
    return isinstance(tensor_info, TensorInformation)


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """A list or tuple, also a named one, of the type of ``obj`` that holds what ``generator`` gives."""
    return rebuild(obj, iter(generator))


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """``func(leaf, *args, **kwargs)`` for each leaf of ``data`` that ``test_type`` accepts; containers keep their type.

    Raises:
        InputError: with ``error_on_other_type``, for any other leaf.
    """
    if isinstance(data, tuple | list):
        inside = (_again(func, item, args, test_type, error_on_other_type, kwargs) for item in data)
        return rebuild(data, inside)
    if isinstance(data, Mapping):
        return rebuild_mapping(
            data, {k: _again(func, v, args, test_type, error_on_other_type, kwargs) for k, v in data.items()}
        )
    if test_type(data):
        return func(data, *args, **kwargs)
    if error_on_other_type:
        name = getattr(func, "__name__", repr(func))
        raise InputError(
            f"Unsupported types ({type(data)}) passed to `{name}`. Give lists, tuples or mappings of leaves for which "
            f"`{getattr(test_type, '__name__', test_type)}` is true."
        )
    return data


def _again(
    func: Callable[..., Any], data: Any, args: tuple, test: Callable[[Any], bool], strict: bool, kwargs: dict[str, Any]
) -> Any:
    return recursively_apply(func, data, *args, test_type=test, error_on_other_type=strict, **kwargs)


def get_data_structure(data: Any) -> Any:
    """``data`` with a `TensorInformation` (shape and dtype) in the place of each tensor."""
    return recursively_apply(lambda tensor: TensorInformation(shape=tensor.shape, dtype=tensor.dtype), data)


def get_shape(data: Any) -> Any:
    """``data`` with the shape of each tensor, as a list of int, in its place."""
    return recursively_apply(lambda tensor: list(tensor.shape), data)


def initialize_tensors(data_structure: Any) -> Any:
    """A structure of `TensorInformation` with an empty CPU tensor of that shape and dtype in the place of each."""
    return recursively_apply(
        lambda info: torch.empty(*info.shape, dtype=info.dtype), data_structure, test_type=is_tensor_information
    )


def find_batch_size(data: Any) -> int | None:
    """Length along dimension 0 of the first tensor in ``data``.

    Raises:
        ConfigError: a container without items.
        InputError: the first leaf is not a tensor.
    """
    if isinstance(data, tuple | list | Mapping):
        if len(data) == 0:
            raise ConfigError(f"an empty {type(data).__name__} has no batch size.")
        return find_batch_size(data[next(iter(data))] if isinstance(data, Mapping) else data[0])
    if not isinstance(data, Tensor):
        raise InputError(f"the batch size is that of the first tensor, but the first leaf is a {type(data).__name__}.")
    return data.shape[0]


def ignorant_find_batch_size(data: Any) -> int | None:
    """`find_batch_size`, or None where that raises."""
    try:
        return find_batch_size(data)
    except (ConfigError, InputError):
        return None


def find_device(data: Any) -> torch.device | None:
    """The device of the first tensor in ``data``; None if there is none."""
    return next((tensor.device for tensor in leaves(data, leaf=is_torch_tensor)), None)


def listify(data: Any) -> Any:
    """``data`` with each tensor as a number (0-d) or nested lists of numbers."""
    return map_leaves(lambda tensor: tensor.detach().tolist(), data, leaf=is_torch_tensor)


def slice_tensors(
    data: Any, tensor_slice: slice, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    """``data`` with ``tensor[tensor_slice]`` for each tensor. Other functions in this place may use the last two."""
    return recursively_apply(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: list[Any], dim: int = 0) -> Any:
    """One structure out of a list of equal ones: their tensors, concatenated along ``dim``.

    Raises:
        InputError: the structures hold something else than tensors.
    """
    first = data[0]
    if isinstance(first, tuple | list):
        return rebuild(first, (concatenate([one[i] for one in data], dim) for i in range(len(first))))
    if isinstance(first, Mapping):
        return rebuild_mapping(first, {key: concatenate([one[key] for one in data], dim) for key in first})
    if isinstance(first, Tensor):
        return torch.cat(data, dim=dim)
    if len(data) == 1:
        return first
    raise InputError(f"only tensors can be concatenated, not a {type(first).__name__}.")


# -- precision --------------------------------------------------------------------------------------------------------


class ConvertOutputsToFp32:
    """A forward function whose half-precision outputs come back in float32."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        functools.update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the forward function; fp16 and bf16 tensors, at any depth, as float32."""
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __getstate__(self) -> NoReturn:
        raise pickle.PicklingError(
            "a forward that converts its outputs cannot be pickled. Take it from the model first: "
            "unwrap_model(model, keep_fp32_wrapper=False)."
        )


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """``model_forward`` as a function whose half-precision outputs come back in float32."""
    converting = ConvertOutputsToFp32(model_forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return converting(*args, **kwargs)

    forward.__wrapped__ = converting  # type: ignore[attr-defined]
    return forward


__getattr__, __dir__ = attach(__name__)
