"""Sampler classes: tables of the sharing rules, lengths, the seedable order, skipping."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from drivetrain.core.errors import ConfigError, InputError
from drivetrain.data.samplers import (
    BatchSamplerShard,
    SeedableRandomSampler,
    SkipBatchSampler,
    get_sampler,
    is_distributed,
)


def sequential(n, size, drop_last=False):
    return BatchSampler(SequentialSampler(range(n)), size, drop_last)


def shards(batch_sampler, num=2, **options):
    return [BatchSamplerShard(batch_sampler, num, rank, **options) for rank in range(num)]


def test_shard_gives_the_plan_of_its_rank():
    first, second = shards(sequential(7, 2))
    assert list(first) == [[0, 1], [4, 5]] and list(second) == [[2, 3], [6, 0]]
    assert list(second.counted()) == [([2, 3], 2), ([6, 0], 1)]
    assert len(first) == len(second) == 2 and first.total_length == 4
    assert (first.batch_size, first.drop_last) == (2, False)


def test_even_batches_may_change_between_two_iterations():
    _, second = shards(sequential(5, 2))
    assert list(second) == [[2, 3], [1, 2]]
    second.even_batches = False
    assert list(second) == [[2, 3]] and len(second) == 1


@pytest.mark.parametrize("n", range(0, 14))
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_length_is_the_number_of_batches(n, drop_last, even, split):
    for shard in shards(sequential(n, 4, drop_last), split_batches=split, even_batches=even):
        assert len(shard) == len(list(shard))


def test_split_needs_a_batch_size_that_the_ranks_can_share():
    with pytest.raises(ConfigError, match="round multiple"):
        BatchSamplerShard(sequential(8, 3), 2, 0, split_batches=True)
    with pytest.raises(ValueError, match="round multiple"):
        BatchSamplerShard([[0], [1, 2]], 2, 0, split_batches=True)
    with pytest.raises(ConfigError, match="process_index=2"):
        BatchSamplerShard(sequential(8, 3), 2, 2)


def test_batch_samplers_without_a_batch_size():
    first, second = shards([[0], [1, 2], [3, 4, 5]])
    assert list(first) == [[0], [3, 4, 5]] and list(second) == [[1, 2], [0]]


def test_seedable_order_is_a_function_of_seed_and_epoch():
    sampler = SeedableRandomSampler(range(6), data_seed=42)
    assert [list(sampler), list(sampler)] == [[0, 3, 2, 4, 1, 5], [4, 0, 5, 1, 2, 3]]
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == [0, 3, 2, 4, 1, 5]


def test_seedable_sampler_takes_torchs_seed():
    torch.manual_seed(42)
    assert list(SeedableRandomSampler(range(6))) == [0, 3, 2, 4, 1, 5]


def test_skipping_batches():
    skipped = SkipBatchSampler(sequential(7, 2), 2)
    assert list(skipped) == [[4, 5], [6]] and len(skipped) == 2 and skipped.total_length == 4
    assert skipped.batch_size == 2
    assert list(SkipBatchSampler(sequential(7, 2), 9)) == [] and len(SkipBatchSampler(sequential(7, 2), 9)) == 0
    _, second = shards(sequential(7, 2))
    skipped = SkipBatchSampler(second, 1)
    assert list(skipped.counted()) == [([6, 0], 1)]
    skipped.even_batches = False
    assert list(skipped) == [[6]] and second.even_batches is False
    with pytest.raises(InputError, match="negative"):
        SkipBatchSampler(sequential(7, 2), -1)


def test_get_sampler():
    data = torch.arange(4)
    random = RandomSampler(data)
    assert get_sampler(DataLoader(data, sampler=random)) is random
    batches = BatchSampler(random, 2, False)
    assert get_sampler(DataLoader(data, sampler=batches, batch_size=None)) is random
    assert get_sampler(DataLoader(data, batch_sampler=[[0], [1]])) is None


def test_is_distributed():
    from torch.utils.data.distributed import DistributedSampler

    assert is_distributed(DistributedSampler(range(4), num_replicas=2, rank=0))
    assert not is_distributed(RandomSampler(range(4)))
