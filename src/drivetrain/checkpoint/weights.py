"""A model's weights on disk: safetensors, in shards with an index where they are large, tied tensors once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drivetrain.core.errors import ConfigError, InputError

SAFE_NAME, SAFE_PATTERN, SAFE_INDEX = "model.safetensors", "model{suffix}.safetensors", "model.safetensors.index.json"
BIN_NAME, BIN_PATTERN, BIN_INDEX = "pytorch_model.bin", "pytorch_model{suffix}.bin", "pytorch_model.bin.index.json"
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_size(size: int | str) -> int:
    """Bytes of ``size``: a whole number, or text such as ``"10GB"`` (10**9) or ``"10GiB"`` (2**30).

    Raises:
        ConfigError: the text is no size.
    """
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", size.upper())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"{size!r} is not a size. Write a number of bytes, or text such as '10GB' or '512MiB'.")
    return int(float(match[1]) * _UNITS[match[2]])


def save_weights(
    state: Mapping[str, Tensor], folder: Path, *, max_shard_size: int | str = "10GB", safe: bool = True
) -> list[Path]:
    """Write whole weights into ``folder``; returns the files written.

    Every file is written beside its place and moved there when it is complete, and the index comes last, so a reader
    never meets half a file. Files of an earlier save that are not overwritten are removed at the end.

    Args:
        state: name to tensor, as ``state_dict()`` gives it. Tensors that are the same memory are written once, under
            the first of their names; the others are noted in the file's metadata.
        max_shard_size: bytes, or text such as "10GB". A single larger tensor gets a file of its own.
        safe: safetensors, or torch's own pickled format.

    Raises:
        InputError: something in ``state`` is not a tensor.
    """
    check_tensors(state)
    folder.mkdir(parents=True, exist_ok=True)
    kept, aliases = _without_aliases(state)
    shards = _shards(kept, parse_size(max_shard_size))
    pattern, index_name = (SAFE_PATTERN, SAFE_INDEX) if safe else (BIN_PATTERN, BIN_INDEX)
    files = [
        pattern.format(suffix="" if len(shards) == 1 else f"-{i:05d}-of-{len(shards):05d}")
        for i in range(1, len(shards) + 1)
    ]
    for file, shard in zip(files, shards, strict=True):
        _write(folder / file, shard, {k: v for k, v in aliases.items() if v in shard}, safe)
    if len(shards) > 1:
        where = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        where |= {alias: where[name] for alias, name in aliases.items()} if not safe else {}
        total = sum(_bytes(t) for t in kept.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2, sort_keys=True) + "\n"
        replace(folder / index_name, lambda path: path.write_text(text))
        files.append(index_name)
    _remove_old(folder, pattern, index_name, set(files))
    return [folder / file for file in files]


def save_file(state: Mapping[str, Tensor], path: Path) -> None:
    """Write named tensors to one safetensors file; names that share memory are written once and noted."""
    check_tensors(state)
    kept, aliases = _without_aliases(state)
    _write(path, kept, aliases, safe=True)


def check_tensors(state: Mapping[str, Any]) -> None:
    """Raise an `InputError` that names the first value in ``state`` that is not a tensor."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name!r} in the weights is a {type(value).__name__}, not a tensor.")


def _write(path: Path, tensors: dict[str, Tensor], aliases: dict[str, str], safe: bool) -> None:
    if safe:
        from safetensors.torch import save_file

        metadata = {"format": "pt", **aliases}
        replace(path, lambda p: save_file(tensors, str(p), metadata=metadata))
    else:
        whole = {**tensors, **{alias: tensors[name] for alias, name in aliases.items()}}
        replace(path, lambda p: torch.save(whole, p))


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` write beside ``path``, flush it to disk, move it into place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _without_aliases(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, on the CPU and contiguous, and for each further name of one of them that one's name."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        tensor = tensor.detach()
        identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and tensor.device.type != "meta" and identity in seen:
            aliases[name] = seen[identity]
            continue
        seen[identity] = name
        kept[name] = _own_memory(tensor)
    return kept, aliases


def _own_memory(tensor: Tensor) -> Tensor:
    """``tensor`` on the CPU, contiguous; a view of something larger is copied, since the format stores whole memory."""
    tensor = tensor.cpu().contiguous()
    partial = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
    return tensor.clone() if partial else tensor


def _shards(state: dict[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in state.items():
        if shards[-1] and size + _bytes(tensor) > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += _bytes(tensor)
    return shards


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _remove_old(folder: Path, pattern: str, index_name: str, keep: set[str]) -> None:
    """Remove shards and index of an earlier save of another size: beside the new ones they would be read as well."""
    stem, end = pattern.split("{suffix}")
    shard = re.compile(re.escape(stem) + r"(-\d{5}-of-\d{5})?" + re.escape(end))
    for path in folder.iterdir():
        if path.name not in keep and (shard.fullmatch(path.name) or path.name == index_name):
            path.unlink()
