"""Models unwrapped, files saved, and small tools that scripts import."""

from __future__ import annotations

import functools
import os
import platform
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from drivetrain.checkpoint import weights
from drivetrain.precision import autocast
from drivetrain.transforms import compile as compiling
from drivetrain.transforms.compile import is_compiled as is_compiled_module
from torch import Tensor, nn

from accelerate import _current
from accelerate._names import attach
from accelerate.logging import get_logger

logger = get_logger(__name__)

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def extract_model_from_parallel(
    model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True, recursive: bool = False
) -> nn.Module:
    """The user's module inside a wrapped one.

    Args:
        keep_fp32_wrapper: whether its forward still runs in mixed precision. False takes that from the module.
        keep_torch_compile: whether a compiled model comes back compiled.
        recursive: whether wrappers around modules inside the model are taken off as well.
    """
    inner = compiling.original(model)
    while isinstance(inner, _WRAPPERS):
        inner = compiling.original(inner.module)
    if recursive:
        for name, child in list(inner.named_children()):
            if isinstance(child, _WRAPPERS) or list(child.children()):
                setattr(inner, name, extract_model_from_parallel(child, recursive=True))
    if not keep_fp32_wrapper:
        autocast.remove(inner)
    return compiling.around(model, inner) if keep_torch_compile and is_compiled_module(model) else inner


def model_has_dtensor(model: nn.Module) -> bool:
    """Whether any parameter of ``model`` is a DTensor."""
    return any(hasattr(p, "device_mesh") and hasattr(p, "placements") for p in model.parameters())


def get_model_tp_size(model: nn.Module) -> int | None:
    """Over how many ranks each layer of ``model`` is spread, as it or its config says; None if they do not."""
    size = getattr(model, "tp_size", None)
    if size is not None:
        return size
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    return config.get("tp_size") if isinstance(config, Mapping) else getattr(config, "tp_size", None)


def get_module_children_bottom_up(model: nn.Module, return_fqns: bool = False) -> list[Any]:
    """Every module inside ``model``, each after those inside it, ``model`` last; with names if ``return_fqns``."""
    out: list[tuple[str, nn.Module]] = []

    def visit(name: str, module: nn.Module) -> None:
        for child_name, child in module.named_children():
            visit(f"{name}.{child_name}" if name else child_name, child)
        out.append((name, module))

    visit("", model)
    return out if return_fqns else [module for _, module in out]


# -- files ------------------------------------------------------------------------------------------------------------


def save(
    obj: Any, f: str | os.PathLike[str] | BinaryIO, save_on_each_node: bool = False, safe_serialization: bool = False
) -> None:
    """Write ``obj`` to ``f``, on process 0 (or on the first one of each machine).

    A file appears complete or not at all. With ``safe_serialization`` a mapping of names to tensors is written as
    safetensors; otherwise anything is written by `torch.save`, which pickles.
    """
    topology = _current.world().topology
    if not (topology.is_local_main if save_on_each_node else topology.is_main):
        return
    if not isinstance(f, str | os.PathLike):
        torch.save(obj, f)
    elif safe_serialization:
        weights.save_file(obj, Path(f))
    else:
        weights.replace(Path(f), lambda path: torch.save(obj, path))


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """`torch.load` that unpickles nothing but tensors and plain containers, unless ``weights_only=False`` is given."""
    return torch.load(f, map_location=map_location, **{"weights_only": True, **kwargs})


def clean_state_dict_for_safetensors(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """``state_dict`` with each piece of memory under the first of its names only, contiguous.

    The mapping given is left alone. safetensors stores no tensor twice; a warning names what was left out.
    """
    kept: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, value in state_dict.items():
        if isinstance(value, Tensor) and value.device.type != "meta" and value.numel():
            storage = value.untyped_storage()
            first = seen.setdefault((value.device, storage.data_ptr(), storage.nbytes()), name)
            if first != name:
                dropped[name] = first
                continue
        kept[name] = value.contiguous() if isinstance(value, Tensor) else value
    if dropped:
        logger.warning(
            "these names share memory with others and are left out: %s",
            ", ".join(f"{name} (see {first})" for name, first in dropped.items()),
        )
    return kept


# -- small tools ------------------------------------------------------------------------------------------------------


def wait_for_everyone() -> None:
    """Return when every process has called this."""
    _current.world().control.wait_for_everyone()


def get_pretty_name(obj: Any) -> str:
    """The name of a class or function; of any other object, that of its class."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    return getattr(named, "__qualname__", None) or getattr(named, "__name__", None) or str(obj)


def merge_dicts(source: Mapping[str, Any], destination: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put ``source`` into ``destination``, in place, mapping by mapping; ``source`` wins where both have a value."""
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(destination.get(key, {}), MutableMapping):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def recursive_getattr(obj: Any, attr: str) -> Any:
    """``obj.a.b`` for ``attr="a.b"``."""
    return functools.reduce(getattr, attr.split("."), obj)


def is_port_in_use(port: int | str | None = None) -> bool:
    """Whether something listens on ``port`` of this machine. None: 29500."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        return one.connect_ex(("localhost", 29500 if port is None else int(port))) == 0


def get_free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def convert_bytes(size: float) -> str:
    """``size`` in bytes as text, in steps of 1024: ``0 bytes``, ``1.5 KB``, up to PB."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024.0:
            return f"{round(size, 2)} {unit}"
        size /= 1024.0
    return f"{round(size, 2)} PB"


def check_os_kernel() -> None:
    """Warn on a Linux kernel under 5.5, where processes have been seen to hang."""
    if platform.system() != "Linux":
        return
    numbers = platform.release().split("-")[0].split(".")
    try:
        version = tuple(int(number) for number in numbers[:2])
    except ValueError:
        return
    if version < (5, 5):
        logger.warning(
            "kernel %s is older than 5.5.0, and processes may hang on it. Use a newer one.", platform.release()
        )


__getattr__, __dir__ = attach(__name__)
