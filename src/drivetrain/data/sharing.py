"""The two ways in which a rank gets its share of a loader by itself: by indices, and out of a stream."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe, RandomSampler

from drivetrain.core.errors import ConfigError
from drivetrain.data.collation import CountingCollate
from drivetrain.data.feed import Feed
from drivetrain.data.iterable import IterableDatasetShard, StatefulShard, WorkerInit
from drivetrain.data.order import FixedOrder, Order, arranged_batches, arranged_stream
from drivetrain.data.plan import Ranks
from drivetrain.data.samplers import BatchSamplerShard, SeedableRandomSampler, check_split, is_distributed
from drivetrain.data.stateful import Snapshots, keeps_state
from drivetrain.runtime.comm import Comm
from drivetrain.runtime.log import get_logger


def is_stream(dataloader: DataLoader) -> bool:
    """Whether the loader reads an iterable dataset, which has no indices."""
    return isinstance(dataloader.dataset, IterableDataset)


@dataclass(frozen=True)
class Parts:
    """What a `PreparedLoader` is built of, by the names of its arguments."""

    inner: DataLoader
    order: Order
    total_batch_size: int | None
    feed: Feed | None = None
    dataset: Any = None
    snapshots: Snapshots | None = None
    remainder: Callable[[], int] | None = None


@dataclass(frozen=True)
class Sharing:
    """How the data of a loader are shared; builds the parts of the loader of one rank."""

    ranks: Ranks
    comm: Comm
    """The ranks that read, and have to agree on the order."""
    split: bool = False
    """Whether a batch is that of all ranks together, and cut."""
    even: bool = True
    """Whether the end is filled up so that all ranks get as many batches."""
    dispatch: bool = False
    """Whether rank 0 reads for all."""
    seedable: bool = False
    data_seed: int | None = None

    @property
    def shares(self) -> bool:
        """Whether this rank picks its samples itself, out of all."""
        return self.ranks.num > 1 and not self.dispatch

    def parts(self, dataloader: DataLoader) -> Parts:
        """What the loader of this rank is built of.

        Raises:
            ConfigError: the ranks cannot share the batches of ``dataloader``.
        """
        if self.split and self.ranks.num > 1:
            check_split(_batch_size(dataloader), self.ranks.num)
        return self._stream(dataloader) if is_stream(dataloader) else self._indexed(dataloader)

    def _total_batch_size(self, dataloader: DataLoader) -> int | None:
        size = _batch_size(dataloader)
        return size if size is None or self.split else size * self.ranks.num

    # --- map-style ---------------------------------------------------------------------------------------------------

    def _indexed(self, dataloader: DataLoader) -> Parts:
        """Parts for a loader that reads by indices."""
        place, batched, given = _batching(dataloader)
        if self.seedable:
            given = self._with_seedable(given)
        distributed = self.shares and self._is_shared(given)
        source, order = (given, FixedOrder()) if distributed else arranged_batches(given, self.comm)
        if self.shares and not distributed:
            source = BatchSamplerShard(source, *self.ranks, self.split and batched, self.even)
            if not batched:
                source.batch_size = None  # ready-made batches are of unknown sizes
        inner = _copied(dataloader)
        if inner.num_workers and not getattr(inner, "in_order", True):
            get_logger(__name__).warning(
                "a loader with in_order=False is prepared with in_order=True: the place of a batch tells which of its "
                "samples are padding."
            )
            inner.__dict__["in_order"] = True
        tail = distributed and _pads_this_rank(getattr(given, "sampler", given), self.ranks)
        feed = Feed(source, order, batched=batched, padded_tail=tail, one_to_one=_reads_like_torch(inner))
        inner.__dict__[place] = feed
        known = batched and not distributed and not self.dispatch
        remainder = self._remainder_of_indices(source) if known else None
        return Parts(inner, order, self._total_batch_size(dataloader), feed, remainder=remainder)

    def _with_seedable(self, given: Any) -> Any:
        """A copy of a batch sampler whose `RandomSampler` is replaced by a seedable one."""
        sampler = getattr(given, "sampler", None)
        if type(sampler) is not RandomSampler:
            return given
        given = copy.copy(given)
        given.sampler = SeedableRandomSampler(
            sampler.data_source, replacement=sampler.replacement, num_samples=sampler._num_samples,
            generator=sampler.generator, data_seed=self.data_seed,
        )  # fmt: skip
        return given

    def _is_shared(self, given: Any) -> bool:
        """Whether the user's sampler shares the data between the ranks already.

        Raises:
            ConfigError: it does, but between another number of ranks.
        """
        if isinstance(given, BatchSamplerShard):
            return given.num_processes > 1
        found = next((s for s in (given, getattr(given, "sampler", None)) if is_distributed(s)), None)
        if found is None or found.num_replicas == 1:
            return False
        if (found.num_replicas, found.rank) != tuple(self.ranks):
            raise ConfigError(
                f"the loader's {type(found).__name__} is for rank {found.rank} of {found.num_replicas}, but this is "
                f"rank {self.ranks.rank} of {self.ranks.num}. Make the loader without it: prepare shares the data."
            )
        return True

    def _remainder_of_indices(self, source: Any) -> Callable[[], int] | None:
        batching = source.batch_sampler if isinstance(source, BatchSamplerShard) else source
        if type(batching) is not BatchSampler or batching.drop_last:
            return None
        size = batching.batch_size * (1 if self.split else self.ranks.num)
        return lambda: len(batching.sampler) % size  # pyright: ignore[reportArgumentType]

    # --- iterable ----------------------------------------------------------------------------------------------------

    def _stream(self, dataloader: DataLoader) -> Parts:
        """Parts for a loader over an iterable dataset."""
        inner = _copied(dataloader)
        dataset: Any = dataloader.dataset
        remainder = self._remainder_of_stream(dataloader)
        shown = dataset
        if self.shares and _shards_itself(dataset, self.ranks.num) and not self.split:
            dataset = shown = dataset.shard(num_shards=self.ranks.num, index=self.ranks.rank)
            remainder = None
            self._say("is sharded at its source")
        elif self.shares:
            dataset = shown = self._shard(inner)
            self._say("is read whole by every rank, which keeps its share")
        elif self.dispatch and self.ranks.num > 1:
            self._say("is read by rank 0, which hands every rank its share")
        # Without sharing, too: each worker would read all of it, and torch would share a pipe's seed between ranks.
        if not self.shares and (inner.num_workers or (self.dispatch and isinstance(dataset, IterDataPipe))):
            dataset = self._shard(inner)
        inner.__dict__["dataset"] = dataset
        if self.split and self.shares:
            piece = dataset.piece
            inner.__dict__.update(batch_size=piece, batch_sampler=BatchSampler(inner.sampler, piece, inner.drop_last))
        if _reads_like_torch(inner):
            inner.collate_fn = CountingCollate(inner.collate_fn, batched=inner.batch_size is not None)
        order, total = arranged_stream(dataset, self.comm), self._total_batch_size(dataloader)
        # The loader inside of a dispatching one with drop_last is two rounds ahead of what has been handed out.
        stateful = keeps_state(inner) and not (self.dispatch and inner.drop_last)
        snapshots = Snapshots() if stateful else None
        return Parts(inner, order, total, dataset=shown, snapshots=snapshots, remainder=remainder)

    def _shard(self, inner: DataLoader) -> IterableDatasetShard:
        """The dataset of ``inner``, shared between the ranks, if those that read share it, and their workers."""
        if inner.worker_init_fn is not None:
            inner.worker_init_fn = WorkerInit(inner.worker_init_fn)
        ranks = self.ranks if self.shares else Ranks(1, 0)
        kind = StatefulShard if hasattr(inner.dataset, "load_state_dict") else IterableDatasetShard
        return kind(
            inner.dataset, inner.batch_size or 1, inner.batch_size is not None and inner.drop_last, *ranks,
            split_batches=self.split and self.shares, even_batches=self.even and self.shares,
            mark_padding=_reads_like_torch(inner),
        )  # fmt: skip

    def _remainder_of_stream(self, dataloader: DataLoader) -> Callable[[], int] | None:
        dataset, size = dataloader.dataset, self._total_batch_size(dataloader)
        if not hasattr(dataset, "__len__") or size is None or dataloader.drop_last or self.dispatch:
            return None
        return lambda: len(dataset) % size  # pyright: ignore[reportArgumentType]

    def _say(self, what: str) -> None:
        logger = get_logger(__name__)
        if logger.isEnabledFor(logging.INFO):
            logger.info(f"an iterable dataset {what} (dispatch_batches={self.dispatch}).")


def _batching(dataloader: DataLoader) -> tuple[str, bool, Any]:
    """Where torch's loader keeps what gives it indices, whether it makes batches of them, and the batch sampler."""
    if isinstance(dataloader.sampler, BatchSampler):
        return "sampler", True, dataloader.sampler
    if dataloader.batch_sampler is not None:
        return "batch_sampler", True, dataloader.batch_sampler
    # Each index names something that is a batch already.
    return "sampler", False, BatchSampler(dataloader.sampler, 1, False)


def _copied(dataloader: DataLoader) -> DataLoader:
    """The same loader again, with all that its class keeps in it, to be changed without changing the user's."""
    inner = copy.copy(dataloader)
    inner.__dict__["_iterator"] = None
    return inner


def _reads_like_torch(dataloader: DataLoader) -> bool:
    return type(dataloader).__iter__ is DataLoader.__iter__ or keeps_state(dataloader)


def _batch_size(dataloader: DataLoader) -> int | None:
    if dataloader.batch_size is not None:
        return dataloader.batch_size
    for sampler in (dataloader.batch_sampler, dataloader.sampler):
        if isinstance(getattr(sampler, "batch_size", None), int):
            return sampler.batch_size  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    return None


def _shards_itself(dataset: Any, num_ranks: int) -> bool:
    """Whether ``dataset`` can give a part of its files to each rank, as the datasets of the package `datasets` can."""
    shards = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
    return callable(getattr(dataset, "shard", None)) and isinstance(shards, int) and shards >= num_ranks


def _pads_this_rank(sampler: Any, ranks: Ranks) -> bool:
    """Whether the last index that torch's `DistributedSampler` gives this rank is there to make the ranks even."""
    from torch.utils.data.distributed import DistributedSampler

    if type(sampler) is not DistributedSampler or sampler.drop_last:
        return False
    return ranks.rank >= ranks.num - (sampler.total_size - len(sampler.dataset))  # pyright: ignore[reportArgumentType]
