"""Batches as bytes between the ranks of one run: tensors travel as their own elements only, not with what they view."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor or not _is_plain(obj):
            return NotImplemented
        flat = obj.cpu().contiguous().reshape(-1).view(torch.uint8)
        data: Any = flat.numpy()
        return _tensor, (pickle.PickleBuffer(data), obj.dtype, tuple(obj.shape))


def _is_plain(tensor: Tensor) -> bool:
    # Zero elements have no bytes to view; complex, quantized, sparse and trainable ones are rare in batches.
    return (
        tensor.layout is torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_complex() or tensor.is_quantized or tensor.is_neg())
    )


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(data, dtype=dtype).view(shape)


def packed(data: Any) -> bytes:
    """``data`` as bytes, with tensors on the CPU. Raises what `pickle` raises for objects that cannot travel."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(data)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """What `packed` was given. Only for bytes from a rank of the same run."""
    return pickle.loads(data)
