"""Samplers: the share of one rank, a shuffle whose order is a function of seed and epoch, a late start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from drivetrain.core.errors import ConfigError, InputError
from drivetrain.data import plan
from drivetrain.data.plan import Ranks, Share


class BatchSamplerShard(BatchSampler):
    """The batches of ``batch_sampler`` that one of several ranks gets.

    Without ``split_batches`` rank ``r`` gets batches ``r``, ``r + P``, ...: ``P`` ranks together take ``P`` times the
    batch size. With it, each batch is cut into ``P`` pieces. ``even_batches`` completes the end with samples from the
    start, so that all ranks get as many batches, all of the same size; it may be changed between two iterations.
    """

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        """
        Raises:
            ConfigError: ``split_batches`` without a batch size, or with one that the ranks cannot share evenly.
        """
        if not 0 <= process_index < num_processes:
            raise ConfigError(f"process_index={process_index} is none of the {num_processes} processes.")
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size: Any = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        if split_batches:
            check_split(self.batch_size, num_processes)

    @property
    def sampler(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sampler inside the wrapped batch sampler, or None."""
        return getattr(self.batch_sampler, "sampler", None)

    @property
    def ranks(self) -> Ranks:
        """How many ranks share the batches, and which one this is."""
        return Ranks(self.num_processes, self.process_index)

    @property
    def total_length(self) -> int:
        """Batches before they are shared."""
        return len(self.batch_sampler)

    def counted(self) -> Iterator[Share]:
        """The batches of this rank, each with the number of its samples that are not padding."""
        if self.split_batches:
            return plan.split_batches(
                self.batch_sampler, self.ranks, batch_size=self.batch_size, drop_last=self.drop_last,
                even=self.even_batches,
            )  # fmt: skip
        return plan.whole_batches(
            self.batch_sampler, self.ranks, batch_size=self.batch_size, drop_last=self.drop_last, even=self.even_batches
        )

    def __iter__(self) -> Iterator[list[Any]]:
        for indices, _ in self.counted():
            yield indices

    def __len__(self) -> int:
        if self.split_batches:
            return plan.num_split_batches(
                self.total_length, self._last_batch(), self.ranks, batch_size=self.batch_size, drop_last=self.drop_last,
                even=self.even_batches,
            )  # fmt: skip
        return plan.num_whole_batches(self.total_length, self.ranks, drop_last=self.drop_last, even=self.even_batches)

    def _last_batch(self) -> int | None:
        """Samples in the last batch before it is cut; None for a batch sampler that is not torch's own."""
        if type(self.batch_sampler) is not BatchSampler:
            return None
        total = len(self.batch_sampler.sampler)  # pyright: ignore[reportArgumentType]
        return total % self.batch_size or self.batch_size


def check_split(batch_size: int | None, num_processes: int) -> None:
    """Refuse a batch that cannot be cut into equal pieces.

    Raises:
        ConfigError: ``batch_size`` is unknown or no multiple of ``num_processes``.
    """
    if batch_size is None or batch_size % num_processes:
        what = "unknown" if batch_size is None else str(batch_size)
        raise ConfigError(
            f"split_batches=True cuts each batch into {num_processes} equal pieces, but the batch size is {what}. Give "
            f"the loader a batch_size that is a round multiple of {num_processes}, or use split_batches=False."
        )


class SeedableRandomSampler(RandomSampler):
    """A `RandomSampler` whose order in epoch ``e`` is that of a generator seeded with ``initial_seed + e``.

    Each complete iteration ends by moving on to the next epoch; `set_epoch` goes to any other.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        """
        Args:
            data_seed: the seed. None: the one that torch was last seeded with.
        """
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.random.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.initial_seed + self.epoch)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives the order of ``epoch``."""
        self.epoch = epoch


class SkipBatchSampler(BatchSampler):
    """``batch_sampler`` without its first ``skip_batches`` batches."""

    def __init__(self, batch_sampler: Any, skip_batches: int = 0) -> None:
        """
        Raises:
            InputError: ``skip_batches`` is negative.
        """
        if skip_batches < 0:
            raise InputError(f"skip_batches={skip_batches}: the number of batches to skip cannot be negative.")
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    @property
    def total_length(self) -> int:
        """Batches before any is skipped."""
        return len(self.batch_sampler)

    @property
    def even_batches(self) -> bool:
        """That of the wrapped `BatchSamplerShard`; other batch samplers have none."""
        return self.batch_sampler.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.batch_sampler.even_batches = value

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.batch_sampler), self.skip_batches, None)

    def counted(self) -> Iterator[Share]:
        """The batches that are left, each with the number of its samples that are not padding."""
        return plan.advanced(counted(self.batch_sampler), self.skip_batches)

    def __len__(self) -> int:
        return max(0, self.total_length - self.skip_batches)

    def __getattr__(self, name: str) -> Any:
        if name == "batch_sampler" or name.startswith("__"):  # not set yet, or asked by pickle and copy of this itself
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)


def counted(source: Any) -> Iterator[Share]:
    """The batches of any batch sampler, each with the number of its samples that are not padding."""
    if isinstance(source, BatchSamplerShard | SkipBatchSampler):
        return source.counted()
    return ((indices, len(indices)) for indices in source)


def get_sampler(dataloader: Any) -> Any:
    """The sampler that orders the indices of ``dataloader``, or None if it has none (iterable datasets)."""
    batched = dataloader.sampler if isinstance(dataloader.sampler, BatchSampler) else dataloader.batch_sampler
    return getattr(batched, "sampler", None)


def is_distributed(sampler: Any) -> bool:
    """Whether ``sampler`` shares its data between ranks already, as torch's `DistributedSampler` does."""
    return hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")
