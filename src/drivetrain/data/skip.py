"""A loader without its first batches, which are not read (map-style) or not put together (iterable)."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from drivetrain.core.errors import InputError
from drivetrain.data.loader import PreparedLoader
from drivetrain.data.prepare import prepare_data_loader
from drivetrain.data.samplers import SkipBatchSampler


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """A loader like ``dataloader`` that leaves out the first ``num_batches`` batches (of each rank) of every epoch.

    All settings are kept. Of a prepared loader it takes the next epoch, and the epoch after it is the next one for
    both; a position that `load_state` restored and that is not used yet is replaced by this one. The loader given is
    not changed otherwise.

    Raises:
        InputError: ``dataloader`` is no loader, or ``num_batches`` is negative.
    """
    if num_batches < 0:
        raise InputError(f"num_batches={num_batches}: the number of batches to skip cannot be negative.")
    if isinstance(dataloader, PreparedLoader):
        return dataloader.skipped(num_batches)
    if not isinstance(dataloader, DataLoader):
        raise InputError(
            f"a {type(dataloader).__name__} is no torch.utils.data.DataLoader, so no batches can be skipped."
        )
    if isinstance(dataloader.dataset, IterableDataset):
        return prepare_data_loader(dataloader).skipped(num_batches)
    out = copy.copy(dataloader)
    place = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
    out.__dict__[place] = SkipBatchSampler(getattr(dataloader, place), num_batches)
    out.__dict__["_iterator"] = None
    return out
