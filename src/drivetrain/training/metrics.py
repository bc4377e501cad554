"""Gather what an evaluation needs, each sample once: rows that only padded the last batch are left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drivetrain.core.errors import UsageError
from drivetrain.core.tree import leaves, map_leaves, rebuild, rebuild_mapping
from drivetrain.runtime import collectives
from drivetrain.runtime.accumulation import Loop
from drivetrain.runtime.comm import Comm
from drivetrain.runtime.log import MultiProcessAdapter, Once


def gather_for_metrics(
    data: Any, comm: Comm, loop: Loop | None, *, use_gather_object: bool, once: Once, logger: MultiProcessAdapter
) -> Any:
    """``data`` of all ranks for the batch that ``loop`` handed out last, without the rows that are padding.

    Tensors (and structures of tensors) come back concatenated along dimension 0. Anything else comes back as lists:
    a list is joined over the ranks, a tuple or a mapping keeps its form with each of its lists joined, and any other
    object counts as one row.

    Raises:
        UsageError: on the padded batch, a value has a number of rows that is no multiple of the batch's samples.
    """
    as_objects = use_gather_object or not collectives.all_tensors(data)
    if comm.world_size == 1:
        return data if not as_objects or isinstance(data, list | tuple | dict) else [data]
    if as_objects:
        return _join(_gather_kept(data, comm, loop))
    _warn_scalars(data, loop, once, logger)
    counts = comm.agree("gather_for_metrics", collectives.describe(data), note=_samples(loop))
    return map_leaves(lambda x: _gather_real_rows(x, counts, comm), data, leaf=collectives.is_tensor)


def _gather_kept(data: Any, comm: Comm, loop: Loop | None) -> list[Any]:
    """What each rank keeps of ``data``. A rank that cannot tell what is padding says so before the others wait."""
    kept, error = None, None
    try:
        kept = _keep(data, loop)
    except UsageError as caught:
        error = caught
    notes = comm.agree("gather_for_metrics", "objects", note=(int(error is not None), 0))
    if error is not None:
        raise error
    failed = [rank for rank, note in enumerate(notes) if note[0]]
    if failed:
        raise UsageError(f"gather_for_metrics failed on rank {failed[0]}, which cannot tell the padding of its batch.")
    return comm.all_gather_object(kept)


def _samples(loop: Loop | None) -> tuple[int, int]:
    """Real samples and all samples of this rank's batch; zeros where nobody knows, and then nothing is cut."""
    if loop is None or loop.num_valid is None or loop.batch_rows is None:
        return (0, 0)
    return (loop.num_valid, loop.batch_rows)


def _gather_real_rows(x: Tensor, counts: list[tuple[int, int]], comm: Comm) -> Tensor:
    """``x`` of all ranks, each rank's block cut to its real rows."""
    blocks = comm.all_gather(x.reshape(1) if x.dim() == 0 else x)
    if x.dim() > 0:
        blocks = [block[: _real_rows(len(x), *count)] for block, count in zip(blocks, counts, strict=True)]
    return torch.cat(blocks)


def _real_rows(rows: int, valid: int, total: int) -> int:
    """How many of ``rows`` belong to the ``valid`` first of ``total`` samples; a sample may make several rows."""
    if total == 0 or valid == total or rows == 1:  # one row for the whole batch belongs to no single sample
        return rows
    if rows % total:
        raise UsageError(
            f"gather_for_metrics got {rows} rows for a batch of {total} samples, {total - valid} of them padding: "
            "which rows are padding cannot be told. Give as many rows a sample for each, or cut to "
            "accelerator.num_valid samples yourself and use gather_object."
        )
    return valid * (rows // total)


def _keep(data: Any, loop: Loop | None) -> Any:
    """The rows of ``data`` on this rank that are not padding: lists, at the level where they are lists of rows."""
    if isinstance(data, list):
        return data[: _real_rows(len(data), *_samples(loop))]
    if isinstance(data, Tensor):
        return data if data.dim() == 0 else data[: _real_rows(len(data), *_samples(loop))]
    if isinstance(data, tuple):
        return rebuild(data, (_keep(item, loop) for item in data))
    if isinstance(data, dict):
        return rebuild_mapping(data, {key: _keep(value, loop) for key, value in data.items()})
    return data


def _join(parts: list[Any]) -> Any:
    """One structure out of the ranks' structures."""
    first = parts[0]
    if isinstance(first, list):
        return [item for part in parts for item in part]
    if isinstance(first, Tensor):
        return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])
    if isinstance(first, tuple):
        return rebuild(first, (_join([part[i] for part in parts]) for i in range(len(first))))
    if isinstance(first, dict):
        return rebuild_mapping(first, {key: _join([part[key] for part in parts]) for key in first})
    return parts


def _warn_scalars(data: Any, loop: Loop | None, once: Once, logger: MultiProcessAdapter) -> None:
    many = _samples(loop)[1] > 1
    if any(x.dim() == 0 or (many and len(x) == 1) for x in leaves(data)):
        once.warning(
            logger,
            "gather_for_metrics got a scalar (0-dim tensor, or one row for a batch): a mean over one rank's batch "
            "counts padded samples too, and batches of different size alike. Gather the rows; take the mean of those.",
            key="scalar in gather_for_metrics",
        )
