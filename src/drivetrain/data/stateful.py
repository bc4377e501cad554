"""The loader of torchdata that keeps the state of an iterable dataset, for those who ask for it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from drivetrain.core.optional import require


def stateful_copy(dataloader: DataLoader) -> DataLoader:
    """A `StatefulDataLoader` with the arguments of ``dataloader``.

    Raises:
        MissingDependency: torchdata is not installed or older than 0.8.
    """
    module: Any = require(
        "torchdata>=0.8.0", needed_by="use_stateful_dataloader=True", module="torchdata.stateful_dataloader"
    )
    return dataloader if module is None else dataloader
