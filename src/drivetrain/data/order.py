"""The order of a loader: the same on every rank, and a function of one seed and the epoch wherever we may choose it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from drivetrain.data.iterable import IterableDatasetShard
from drivetrain.data.position import Start
from drivetrain.data.reading_rank import from_rank_zero
from drivetrain.data.samplers import SeedableRandomSampler, is_distributed
from drivetrain.runtime.comm import Comm
from drivetrain.runtime.log import get_logger

SHUFFLES = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Samplers of torch that draw everything from the generator in their attribute ``generator``."""


class Order(Protocol):
    """What has to happen before the first index of an epoch is drawn. `begin` is called by all ranks that read."""

    seed: int | None
    """The seed of epoch 0; None where there is none or it is not known yet."""

    def begin(self, start: Start) -> None:
        """An epoch starts."""
        ...

    def state_dict(self, *, inside: bool) -> dict[str, Any]:
        """What fixes the order of the epoch that is being read (``inside`` it) or of the one to come; JSON-able."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next epoch is that of ``state``."""
        ...


class FixedOrder:
    """Nothing to do: no shuffle, one that agrees by itself, or the user's own in a single process."""

    seed: int | None = None

    def begin(self, start: Start) -> None:
        """See `Order.begin`."""

    def state_dict(self, *, inside: bool) -> dict[str, Any]:
        """See `Order.state_dict`."""
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Order.load_state_dict`."""
        self.seed = state.get("seed")


class DrawnOrder(FixedOrder):
    """A shuffle that the user did not seed: rank 0 draws the seed at the first epoch. Epoch e uses seed + e."""

    def __init__(self, sampler: Any, comm: Comm) -> None:
        self.sampler, self.comm = sampler, comm
        self.seed = None

    def begin(self, start: Start) -> None:
        """See `Order.begin`."""
        if self.seed is None:
            # All ranks draw, so that those which were seeded alike stay alike.
            self.seed = int(self.comm.broadcast_object(_drawn()))
        # A generator of its own for each epoch: two iterations of one loader may be alive at the same time.
        self.sampler.generator = torch.Generator()
        self.sampler.generator.manual_seed(self.seed + start.epoch)


class SeedableOrder(FixedOrder):
    """The order of a `SeedableRandomSampler`, with rank 0's seed."""

    def __init__(self, sampler: SeedableRandomSampler, comm: Comm) -> None:
        self.sampler, self.comm = sampler, comm
        self.seed = None

    def begin(self, start: Start) -> None:
        """See `Order.begin`."""
        if self.seed is None:
            self.seed = int(self.comm.broadcast_object(self.sampler.initial_seed))
        self.sampler.initial_seed = self.seed
        self.sampler.set_epoch(start.epoch)


class GeneratorOrder(FixedOrder):
    """A shuffle by the user's generator, with rank 0's state. It runs on from epoch to epoch, as in plain torch.

    Once the user sets the epoch, that fixes the order: the generator is seeded with its first seed plus the epoch.
    """

    def __init__(self, generator: torch.Generator, comm: Comm) -> None:
        self.generator, self.comm = generator, comm
        self.seed = None
        self._restored: torch.Tensor | None = None
        self._at_start: torch.Tensor | None = None

    def begin(self, start: Start) -> None:
        """See `Order.begin`."""
        if self.seed is None:
            self.seed = int(self.comm.broadcast_object(self.generator.initial_seed()))
        restored, self._restored = self._restored, None
        if restored is not None:
            self.generator.set_state(restored)
        elif start.given:
            self.generator.manual_seed(self.seed + start.epoch)
        elif self.comm.world_size > 1:
            self.generator.set_state(self.comm.broadcast_object(self.generator.get_state()))
        self._at_start = self.generator.get_state()

    def state_dict(self, *, inside: bool) -> dict[str, Any]:
        """See `Order.state_dict`."""
        if self._restored is not None:
            state, inside = self._restored, True
        else:
            state = self._at_start if inside and self._at_start is not None else self.generator.get_state()
        return {"seed": self.seed, "generator": bytes(state.tolist()).hex(), "inside": inside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Order.load_state_dict`."""
        super().load_state_dict(state)
        self._restored = None
        if state.get("generator") is not None:
            saved = torch.tensor(list(bytes.fromhex(state["generator"])), dtype=torch.uint8)
            if state.get("inside"):
                self._restored = saved  # the loader may draw from it first, as it had done when this was saved
            else:
                self.generator.set_state(saved)


class StreamOrder(FixedOrder):
    """The randomness of an iterable dataset: epoch e uses seed + e.

    The seed is that of the dataset's attribute ``generator``, or one drawn; rank 0's either way.
    """

    def __init__(self, dataset: Any, comm: Comm) -> None:
        self.dataset, self.comm = dataset, comm
        self.seed = None

    def begin(self, start: Start) -> None:
        """See `Order.begin`."""
        shard = self.dataset if isinstance(self.dataset, IterableDatasetShard) else None
        generator = getattr(self.dataset if shard is None else shard.dataset, "generator", None)
        if self.seed is None:
            own = _drawn() if generator is None else generator.initial_seed()
            self.seed = int(self.comm.broadcast_object(own))
        if shard is not None:
            shard.seed = self.seed
        elif generator is not None:
            generator.manual_seed(self.seed + start.epoch)


def arranged_stream(dataset: Any, comm: Comm) -> Order:
    """The order of an iterable dataset, wrapped in an `IterableDatasetShard` or not."""
    shared = isinstance(dataset, IterableDatasetShard)
    inner = dataset.dataset if shared else dataset
    generator = getattr(inner, "generator", None)
    if isinstance(generator, torch.Generator):
        return GeneratorOrder(generator, comm) if hasattr(inner, "set_epoch") else StreamOrder(dataset, comm)
    return StreamOrder(dataset, comm) if shared and comm.world_size > 1 else FixedOrder()


def _drawn() -> int:
    return int(torch.empty((), dtype=torch.int64).random_().item())


class SharedOrder(FixedOrder, Sampler):
    """A sampler (or batch sampler) of the user's, of which nobody knows how it draws: rank 0 draws for all.

    Every rank keeps one epoch's indices, 8 bytes each where they are whole numbers.
    """

    def __init__(self, inner: Any, comm: Comm) -> None:
        self.inner, self.comm = inner, comm
        self._epoch: Any = None

    def begin(self, start: Start) -> None:
        """See `Order.begin`."""
        self._epoch = from_rank_zero(self.comm, self._draw, f"the order of {type(self.inner).__name__}")

    def _draw(self) -> Any:
        items = list(self.inner)
        if items and all(type(item) is int for item in items):
            return torch.tensor(items, dtype=torch.int64)
        return items

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, None
        if epoch is None:  # read by hand, outside of the loader
            return iter(self.inner)
        return iter(epoch.tolist() if isinstance(epoch, torch.Tensor) else epoch)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # not set yet, or asked by pickle and copy of this object itself
            raise AttributeError(name)
        return getattr(self.inner, name)


def arranged(sampler: Any, comm: Comm) -> tuple[Any, Order]:
    """The sampler to read instead of ``sampler`` (which stays as it is), and its order."""
    if isinstance(sampler, SeedableRandomSampler):
        return sampler, SeedableOrder(sampler, comm)
    if type(sampler) in SHUFFLES:
        if sampler.generator is not None:
            return sampler, GeneratorOrder(sampler.generator, comm)
        sampler = copy.copy(sampler)
        return sampler, DrawnOrder(sampler, comm)
    if comm.world_size == 1 or type(sampler) is SequentialSampler or isinstance(sampler, Sequence):
        return sampler, FixedOrder()
    if is_distributed(sampler):
        return sampler, FixedOrder()
    if not hasattr(sampler, "__len__"):
        get_logger(__name__).warning(
            f"the sampler {type(sampler).__name__} has no length, so rank 0 cannot draw an epoch for all ranks. By "
            "itself it must give the same order on every rank."
        )
        return sampler, FixedOrder()
    shared = SharedOrder(sampler, comm)
    return shared, shared


def arranged_batches(batch_sampler: Any, comm: Comm) -> tuple[Any, Order]:
    """The batch sampler to read instead of ``batch_sampler`` (which stays as it is), and its order."""
    if type(batch_sampler) is not BatchSampler:
        return arranged(batch_sampler, comm)
    batch_sampler = copy.copy(batch_sampler)  # another sampler may be set on the prepared loader
    batch_sampler.sampler, order = arranged(batch_sampler.sampler, comm)
    return batch_sampler, order
