"""Iterable datasets: shares of ranks and workers, padding, order, skipping, place."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from drivetrain.core.errors import ConfigError
from drivetrain.data.iterable import IterableDatasetShard
from drivetrain.data.prepare import prepare_data_loader
from drivetrain.data.skip import skip_first_batches

# Torch warns of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(torch.arange(self.n))


class Sized(Stream):
    def __len__(self):
        return self.n


class Splitting(Sized):
    """Gives each worker a part, as torch's documentation shows first."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(0, self.n) if info is None else range(info.id, self.n, info.num_workers))


class Ranged(IterableDataset):
    """Is given a part in each worker, as torch's documentation shows second."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def split_range(worker_id):
    info = get_worker_info()
    data, part = info.dataset, -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    data.start = data.start + worker_id * part
    data.end = min(data.start + part, data.end)


class Shuffled(Sized):
    def __iter__(self):
        order = list(range(self.n))
        random.shuffle(order)
        return iter(order)


class Generated(Sized):
    def __init__(self, n, seed=5):
        super().__init__(n)
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=self.generator).tolist())


def batches(one):
    return [batch.tolist() for batch in one]


def flat(one):
    return [x for batch in batches(one) for x in batch]


def shares(num, make, **prepare):
    return [prepare_data_loader(make(), num_processes=num, process_index=rank, **prepare) for rank in range(num)]


@pytest.mark.parametrize(
    ("n", "size", "drop", "split", "first", "second"),
    [
        (8, 2, False, False, [0, 1, 4, 5], [2, 3, 6, 7]),
        (8, 4, True, True, [0, 1, 4, 5], [2, 3, 6, 7]),
        (9, 2, False, False, [0, 1, 4, 5, 8, 0], [2, 3, 6, 7, 1, 2]),
        (9, 2, True, False, [0, 1, 4, 5], [2, 3, 6, 7]),
        (6, 2, False, False, [0, 1, 4, 5], [2, 3, 0, 1]),
        (3, 2, False, False, [0, 1], [2, 0]),
        (1, 2, False, False, [0, 0], [0, 0]),
        (5, 1, False, True, [], []),
    ],
)
def test_table_of_samples(n, size, drop, split, first, second):
    pair = [IterableDatasetShard(range(n), size, drop, 2, rank, split) for rank in range(2)]
    assert [list(one) for one in pair] == [first, second]
    assert all(len(one) == len(list(one)) for one in pair)


def test_uneven_ends_without_padding():
    pair = [IterableDatasetShard(range(7), 2, False, 2, rank, even_batches=False) for rank in range(2)]
    assert [list(one) for one in pair] == [[0, 1, 4, 5], [2, 3, 6]]


def test_split_needs_a_size_that_the_ranks_can_share():
    with pytest.raises(ConfigError, match="round multiple"):
        IterableDatasetShard(range(4), 3, False, 2, 0, True)
    with pytest.raises(ConfigError, match="round multiple"):
        shares(2, lambda: DataLoader(Stream(4), batch_size=1), split_batches=True)


def test_epoch_reaches_the_dataset_or_its_generator():
    data = Generated(6)
    shard = IterableDatasetShard(data)
    orders = []
    for epoch in (0, 1, 0):
        shard.set_epoch(epoch)
        orders.append(list(shard))
    assert orders[0] == orders[2] == torch.randperm(6, generator=torch.Generator().manual_seed(0)).tolist()
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 24])
def test_every_sample_once_over_ranks_and_workers(n, workers):
    seen = []
    for one in shares(2, lambda: DataLoader(Stream(n), batch_size=2, num_workers=workers)):
        seen.append([(b.tolist(), one.num_valid, one.end_of_data) for b in one])
    real = [x for rank in seen for batch, valid, _ in rank for x in batch[:valid]]
    assert sorted(real) == list(range(n))
    assert [last for _, _, last in seen[0]] == [last for _, _, last in seen[1]]
    order = [x for pair in zip(*seen, strict=True) for batch, valid, _ in pair for x in batch[:valid]]
    assert order == list(range(n))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_splits_by_workers_is_not_split_again(workers):
    given = {"batch_size": 2, "num_workers": workers}
    for make in (
        lambda: DataLoader(Splitting(10), **given),
        lambda: DataLoader(Ranged(0, 10), worker_init_fn=split_range if workers else None, **given),
    ):
        seen = [x for one in shares(2, make) for b in one for x in b.tolist()[: one.num_valid]]
        assert sorted(seen) == list(range(10))
        assert sorted(flat(prepare_data_loader(make()))) == list(range(10))


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_of_one_process_do_not_repeat_a_stream(workers):
    one = prepare_data_loader(DataLoader(Sized(7), batch_size=2, num_workers=workers))
    assert batches(one) == [[0, 1], [2, 3], [4, 5], [6]]
    assert type(one.dataset) is Sized and len(one) == 4


@pytest.mark.parametrize("num", [1, 2])
def test_workers_see_one_shuffle(num):
    epochs = []
    pair = shares(num, lambda: DataLoader(Shuffled(12), batch_size=2, num_workers=2))
    for _ in range(2):
        seen = []
        for one in pair:
            torch.manual_seed(3)  # in one process nobody sends the seed
            one.order.seed = None
            seen += flat(one)
        assert sorted(seen) == list(range(12))
        epochs.append(seen)
    if num > 1:
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_of_the_dataset_is_seeded_for_each_epoch(workers):
    epochs = []
    pair = shares(2, lambda: DataLoader(Generated(12), batch_size=2, num_workers=workers))
    for _ in range(2):
        epochs.append([flat(one) for one in pair])
        assert sorted(sum(epochs[-1], [])) == list(range(12))
    assert epochs[0] != epochs[1]
    for one in pair:
        one.set_epoch(0)
    assert [flat(one) for one in pair] == epochs[0]


def test_remainder_and_length_of_a_sized_stream():
    first, second = shares(2, lambda: DataLoader(Sized(10), batch_size=4))
    assert [(b.tolist(), second.num_valid, second.remainder) for b in second] == [
        ([4, 5, 6, 7], 4, 2),
        ([2, 3, 4, 5], 0, 2),
    ]
    assert len(first) == 2
    assert len(shares(2, lambda: DataLoader(Sized(10), batch_size=4), split_batches=True)[0]) == 3
    assert len(shares(2, lambda: DataLoader(Sized(10), batch_size=4, drop_last=True))[0]) == 1
    assert [len(prepare_data_loader(DataLoader(Sized(10), batch_size=s))) for s in (4, None)] == [3, 10]
    with pytest.raises(TypeError):
        len(prepare_data_loader(DataLoader(Stream(10), batch_size=4)))


def test_split_batches_of_a_stream():
    first, second = shares(2, lambda: DataLoader(Stream(7), batch_size=4), split_batches=True)
    assert batches(first) == [[0, 1], [4, 5]] and batches(second) == [[2, 3], [6, 0]]
    assert first.batch_size == 2 and first.total_batch_size == 4


def test_streams_of_ready_made_batches():
    class Made(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(6).view(3, 2))

    pair = shares(2, lambda: DataLoader(Made(), batch_size=None))
    seen = [[(b.tolist(), one.num_valid, one.end_of_data) for b in one] for one in pair]
    assert seen == [[([0, 1], 2, False), ([4, 5], 2, True)], [([2, 3], 2, False), ([0, 1], 0, True)]]
    one = prepare_data_loader(DataLoader(Made(), batch_size=None))
    assert [(b.tolist(), one.num_valid, one.batch_rows) for b in one][-1] == ([4, 5], 2, 2)


def test_a_dataset_that_shards_itself():
    class Sharding(Sized):
        num_shards = 4

        def __init__(self, n, start=0, step=1):
            super().__init__(n)
            self.start, self.step = start, step

        def shard(self, num_shards, index):
            return Sharding(self.n, index, num_shards)

        def __iter__(self):
            return iter(range(self.start, self.n, self.step))

    pair = shares(2, lambda: DataLoader(Sharding(8), batch_size=2))
    assert [batches(one) for one in pair] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("num", [1, 2])
def test_skipping_is_done_before_batches_are_made(workers, num):
    made = []

    def collate(items):
        made.append(items)
        return torch.stack(items)

    for one in shares(num, lambda: DataLoader(Sized(24), batch_size=2, num_workers=workers, collate_fn=collate)):
        whole = batches(one)
        made.clear()
        skipped = skip_first_batches(one, 3)
        assert batches(skipped) == whole[3:] and len(skipped) == len(whole) - 3
        assert workers or len(made) == len(whole) - 3


def test_skipping_in_a_plain_loader():
    skipped = skip_first_batches(DataLoader(Sized(8), batch_size=2), 1)
    assert isinstance(skipped, DataLoader) and batches(skipped) == [[2, 3], [4, 5], [6, 7]] and len(skipped) == 3


def test_place_in_a_stream():
    one = prepare_data_loader(DataLoader(Generated(12), batch_size=2))
    list(one)
    expected = []
    for step, batch in enumerate(one):
        expected.append(batch.tolist())
        if step == 1:
            state = one.state_dict()
    other = prepare_data_loader(DataLoader(Generated(12, seed=6), batch_size=2))
    other.load_state_dict(state)
    assert batches(other) == expected[2:]
    assert batches(other) == batches(one)


def test_a_pipe_is_read_once():
    from torch.utils.data.datapipes.iter import IterableWrapper

    pair = shares(2, lambda: DataLoader(IterableWrapper(range(12)).shuffle().sharding_filter(), batch_size=2))
    for one in pair:
        one.order.seed = 4
    assert sorted(sum((flat(one) for one in pair), [])) == list(range(12))


class Pickled(Sized):
    """Travels to its worker in its own way."""

    def __getstate__(self):
        return {"size": self.n}

    def __setstate__(self, state):
        self.n = state["size"]


def test_workers_that_are_started_afresh():
    def make():
        return DataLoader(Pickled(5), batch_size=2, num_workers=1, multiprocessing_context="spawn")

    first, second = shares(2, make)
    assert batches(first) == [[0, 1], [4, 0]]
    assert [(b.tolist(), second.num_valid) for b in second] == [([2, 3], 2), ([1, 2], 0)]
