"""The prepared loader in one process: what it tells about its batches, its epochs, its place, and the loader inside."""

import gc
import itertools
import weakref

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from drivetrain.core.errors import ConfigError, InputError
from drivetrain.data.prepare import prepare_data_loader
from drivetrain.data.samplers import BatchSamplerShard, SeedableRandomSampler
from drivetrain.data.skip import skip_first_batches
from drivetrain.runtime.accumulation import Loops


def loader(n=7, batch_size=2, prepare=None, **options):
    return prepare_data_loader(DataLoader(torch.arange(n), batch_size=batch_size, **options), **(prepare or {}))


def ranks(num, make, **prepare):
    """The loaders that ``num`` ranks would have."""
    return [prepare_data_loader(make(), num_processes=num, process_index=rank, **prepare) for rank in range(num)]


def batches(one):
    return [batch.tolist() for batch in one]


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


def told(one):
    return [(b.tolist(), one.end_of_dataloader, one.remainder) for b in one]


# --- what it tells ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "prepare", "first", "second"),
    [
        ({"batch_size": 2}, {}, [([0, 1], False, 3), ([4, 5], True, 3)], [([2, 3], False, 3), ([6, 0], True, 3)]),
        ({"batch_size": 2, "drop_last": True}, {}, [([0, 1], True, -1)], [([2, 3], True, -1)]),
        (
            {"batch_size": 4},
            {"split_batches": True},
            [([0, 1], False, 3), ([4, 5], True, 3)],
            [([2, 3], False, 3), ([6, 0], True, 3)],
        ),
    ],
)
def test_end_and_remainder_on_two_ranks(options, prepare, first, second):
    assert [told(one) for one in ranks(2, lambda: DataLoader(torch.arange(7), **options), **prepare)] == [first, second]


def test_full_last_batch_has_remainder_zero():
    assert told(loader(8, prepare={"num_processes": 2, "process_index": 0}))[-1] == ([4, 5], True, 0)


def test_the_last_batch_of_one_process():
    one = loader(5)
    assert [remainder for _, _, remainder in told(one)] == [1, 1, 1]
    assert one.end_of_data and one.remainder == 1


def test_samples_of_each_batch():
    _, second = ranks(2, lambda: DataLoader(torch.arange(9), batch_size=2))
    seen = [(second.batch_rows, second.num_valid, second.full_rows) for _ in second]
    assert seen == [(2, 2, 2), (2, 2, 2), (2, 0, 2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_known_with_workers(workers):
    _, second = ranks(2, lambda: DataLoader(torch.arange(9), batch_size=2, num_workers=workers))
    assert [(b.tolist(), second.num_valid, second.end_of_data) for b in second] == [
        ([2, 3], 2, False),
        ([6, 7], 2, False),
        ([1, 2], 0, True),
    ]


def test_the_loop_is_announced_for_as_long_as_it_lasts():
    loops = Loops()
    outer, inner = (prepare_data_loader(DataLoader(torch.arange(4)), loops=loops) for _ in range(2))
    for _ in outer:
        assert loops.active is outer
        for _ in inner:
            assert loops.active is inner
            break
        assert loops.active is outer
    assert loops.active is None


def test_a_loop_left_by_an_exception_is_over():
    loops = Loops()
    one = prepare_data_loader(DataLoader(torch.arange(4)), loops=loops)
    with pytest.raises(KeyError):
        for _ in one:
            raise KeyError
    gc.collect()
    assert loops.active is None


def test_an_error_of_the_dataset_ends_the_loop():
    class Bad(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise ValueError("no such file")

    loops = Loops()
    with pytest.raises(ValueError, match="no such file"):
        list(prepare_data_loader(DataLoader(Bad()), loops=loops))
    assert loops.active is None


def test_an_iterator_that_ends_late_does_not_touch_the_next_loop():
    loops = Loops()
    one = prepare_data_loader(DataLoader(torch.arange(4)), loops=loops)
    old = iter(one)
    next(old)
    for _ in one:
        if old is not None:
            old.close()
            old = None
        assert loops.active is one


def test_empty_loader():
    assert batches(loader(0)) == [] and len(loader(0)) == 0


def test_a_loader_is_freed_when_it_is_dropped():
    one = loader(8, shuffle=True)
    for _ in one:
        break
    gone = weakref.ref(one)
    del one
    assert gone() is None


class Batch:
    def __init__(self, items):
        self.items = items


@pytest.mark.parametrize("data", [torch.arange(6), Endless()], ids=["by index", "stream"])
def test_a_batch_is_gone_when_the_user_lets_go_of_it(data):
    one = prepare_data_loader(DataLoader(data, batch_size=2, collate_fn=Batch), torch.device("cpu"), put_on_device=True)
    for batch in one:  # not enumerate, which keeps the pair it gave last
        gone = weakref.ref(batch)
        del batch
        assert gone() is None
        if one.batches_out == 3:
            break


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_first_epoch_has_the_order_of_plain_torch(workers):
    torch.manual_seed(3)
    plain = batches(DataLoader(torch.arange(20), batch_size=3, shuffle=True, num_workers=workers))
    torch.manual_seed(3)
    assert batches(loader(20, 3, shuffle=True, num_workers=workers)) == plain


def test_every_iteration_is_a_new_epoch():
    torch.manual_seed(0)
    one = loader(32, 4, shuffle=True)
    epochs = [batches(one) for _ in range(3)]
    torch.manual_seed(0)
    other = loader(32, 4, shuffle=True)
    left_early = []
    for _ in range(3):
        for step, batch in enumerate(other):
            if step == 0:
                left_early.append(batch.tolist())
            if step == 2:
                break
    assert left_early == [epoch[0] for epoch in epochs]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(range(32)),
        lambda: RandomSampler(range(32), replacement=True, num_samples=40),
        lambda: SubsetRandomSampler(range(32)),
        lambda: WeightedRandomSampler([1.0] * 32, 20),
        lambda: SeedableRandomSampler(range(32)),
        lambda: RandomSampler(range(32), generator=torch.Generator().manual_seed(3)),
    ],
)
def test_set_epoch_fixes_the_order(make):
    sampler = make()
    one = prepare_data_loader(DataLoader(torch.arange(32), batch_size=4, sampler=sampler))
    orders = {}
    for epoch in (1, 1, 2, 0, 2):
        one.set_epoch(epoch)
        assert orders.setdefault(epoch, order := batches(one)) == order
    assert orders[0] != orders[1] != orders[2]


def test_two_iterations_of_one_loader_at_a_time():
    one = loader(32, 4, shuffle=True)
    first, second = iter(one), iter(one)
    orders = [[next(it).tolist() for _ in range(8)] for it in (first, second)]
    one.set_epoch(0)
    assert [batches(one), batches(one)] == orders


def test_a_generator_of_the_user_goes_on_as_in_plain_torch():
    def make():
        return DataLoader(torch.arange(12), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))

    plain, ours = make(), prepare_data_loader(make())
    assert [batches(ours) for _ in range(3)] == [batches(plain) for _ in range(3)]


def test_a_sampler_of_the_user_goes_on_as_in_plain_torch():
    class Own(Sampler):
        def __iter__(self):
            return iter(torch.randperm(6).tolist())

        def __len__(self):
            return 6

    data = torch.arange(6)
    torch.manual_seed(1)
    plain = [batches(DataLoader(data, sampler=Own())) for _ in range(2)]
    torch.manual_seed(1)
    one = prepare_data_loader(DataLoader(data, sampler=Own()))
    assert [batches(one), batches(one)] == plain


def test_seedable_sampler_replaces_a_random_one():
    one = loader(6, 6, shuffle=True, prepare={"use_seedable_sampler": True, "data_seed": 42})
    assert isinstance(one.get_sampler(), SeedableRandomSampler)
    assert [batches(one), batches(one)] == [[[0, 3, 2, 4, 1, 5]], [[4, 0, 5, 1, 2, 3]]]


@pytest.mark.parametrize("num", [2, 3, 4])
def test_ranks_interleaved_give_the_order_of_one_process(num):
    torch.manual_seed(0)
    whole = [x for batch in batches(loader(24, 2, shuffle=True)) for x in batch]
    shares = []
    for one in ranks(num, lambda: DataLoader(torch.arange(24), batch_size=2, shuffle=True)):
        torch.manual_seed(0)  # in one process nobody sends the seed
        shares.append(batches(one))
    assert [x for round_ in zip(*shares, strict=True) for batch in round_ for x in batch] == whole


def test_epochs_are_told_to_those_who_want_to_know():
    class Told(Dataset):
        def __init__(self):
            self.epochs = []

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return index

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    data = Told()
    one = prepare_data_loader(DataLoader(data))
    list(one), list(one)
    one.set_epoch(7)
    list(one)
    assert data.epochs == [0, 1, 7, 7] and one.iteration == 8


# --- samplers of all kinds -------------------------------------------------------------------------------------------


def test_a_sampler_that_makes_batches_itself():
    class Many(Dataset):
        def __len__(self):
            return 7

        def __getitem__(self, indices):
            return torch.tensor(indices)

    def make():
        data = Many()
        return DataLoader(data, sampler=BatchSampler(SequentialSampler(data), 2, False), batch_size=None)

    first, second = ranks(2, make)
    assert batches(first) == [[0, 1], [4, 5]] and batches(second) == [[2, 3], [6, 0]]
    assert isinstance(first.sampler, BatchSamplerShard) and first.batch_sampler is None


def test_ready_made_batches_by_index():
    def make():
        return DataLoader(torch.arange(10).view(5, 2), batch_size=None)

    first, second = ranks(2, make)
    seen = [[(b.tolist(), one.num_valid, one.end_of_data) for b in one] for one in (first, second)]
    assert seen[0] == [([0, 1], 2, False), ([4, 5], 2, False), ([8, 9], 2, True)]
    assert seen[1] == [([2, 3], 2, False), ([6, 7], 2, False), ([0, 1], 0, True)]
    assert len(first) == len(second) == 3
    assert batches(prepare_data_loader(make())) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_batch_samplers_of_the_user():
    def make():
        return DataLoader(torch.arange(6), batch_sampler=[[0], [1, 2], [3, 4, 5]])

    first, second = ranks(2, make)
    assert batches(first) == [[0], [3, 4, 5]]
    assert [(b.tolist(), second.num_valid) for b in second] == [([1, 2], 2), ([0], 0)]


def test_a_distributed_sampler_is_not_shared_again():
    data = torch.arange(7)

    def make(rank):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False)
        return DataLoader(data, batch_size=2, sampler=sampler)

    pair = [prepare_data_loader(make(rank), num_processes=2, process_index=rank) for rank in range(2)]
    seen = [[(b.tolist(), one.num_valid) for b in one] for one in pair]
    assert seen == [[([0, 2], 2), ([4, 6], 2)], [([1, 3], 2), ([5, 0], 1)]]
    with pytest.raises(ConfigError, match="DistributedSampler is for rank 1 of 2, but this is rank 0 of 4"):
        prepare_data_loader(make(1), num_processes=4, process_index=0)


def test_a_distributed_sampler_reshuffles_each_epoch():
    sampler = DistributedSampler(range(16), num_replicas=2, rank=0)
    one = prepare_data_loader(DataLoader(torch.arange(16), sampler=sampler), num_processes=2, process_index=0)
    assert batches(one) != batches(one)


def test_split_batches_need_a_batch_size_that_the_ranks_can_share():
    with pytest.raises(ValueError, match="round multiple"):
        loader(7, 3, prepare={"num_processes": 2, "process_index": 0, "split_batches": True})
    assert batches(loader(7, 3, prepare={"split_batches": True}))[-1] == [6]


def test_uneven_ends():
    first, second = ranks(2, lambda: DataLoader(torch.arange(5), batch_size=2), even_batches=False)
    assert told(first)[-1][:2] == ([4], True) and told(second)[-1][:2] == ([2, 3], True)
    first.even_batches = second.even_batches = True
    assert batches(first)[-1] == [4, 0] and batches(second)[-1] == [1, 2]


# --- the loader inside -----------------------------------------------------------------------------------------------


def test_it_is_a_data_loader_with_the_attributes_of_the_one_given():
    class Mine(DataLoader):
        def __init__(self, *args, tag, **kwargs):
            super().__init__(*args, **kwargs)
            self.tag = tag

    given = Mine(torch.arange(6), batch_size=2, tag="t", pin_memory=False)
    one = prepare_data_loader(given)
    assert isinstance(one, DataLoader) and one.tag == "t" and one.batch_size == 2 and one.num_workers == 0
    assert one.dataset is given.dataset and type(one.batch_sampler) is BatchSampler and len(one) == 3
    assert one.multiprocessing_context is None
    one.collate_fn = lambda items: "changed"
    assert list(one) == ["changed"] * 3
    assert batches(given) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="batch_size"):
        one.batch_size = 3
    with pytest.raises(AttributeError):
        _ = one.nothing_like_that


def test_the_loader_given_and_its_sampler_stay_as_they_are():
    given = DataLoader(torch.arange(8), batch_size=2, shuffle=True)
    before, inside = dict(vars(given)), dict(vars(given.sampler))
    one = prepare_data_loader(given)
    list(one), list(skip_first_batches(one, 1))
    assert vars(given) == before and vars(given.sampler) == inside


def test_total_batch_size_and_dataset_length():
    assert loader(9, 4).total_batch_size == 4 and loader(9, 4).total_dataset_length == 9
    first, _ = ranks(2, lambda: DataLoader(torch.arange(9), batch_size=4))
    assert first.total_batch_size == 8
    first, _ = ranks(2, lambda: DataLoader(torch.arange(9), batch_size=4), split_batches=True)
    assert first.total_batch_size == 4


def test_another_sampler_may_be_set():
    first, second = ranks(2, lambda: DataLoader(torch.arange(8), batch_size=2))
    for one in (first, second):
        one.set_sampler(SequentialSampler(range(4)))
    assert batches(first) == [[0, 1]] and batches(second) == [[2, 3]]
    fixed = prepare_data_loader(DataLoader(torch.arange(2), batch_sampler=[[0], [1]]))
    with pytest.raises(InputError, match="no sampler"):
        fixed.set_sampler(SequentialSampler(range(2)))


def test_a_loader_class_that_reads_in_its_own_way():
    class Doubling(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch
                yield batch

    one = prepare_data_loader(Doubling(torch.arange(3), batch_size=2))
    assert [(b.tolist(), one.end_of_data) for b in one] == [
        ([0, 1], False),
        ([0, 1], False),
        ([2], False),
        ([2], True),
    ]


def test_persistent_workers_go_through_the_epochs():
    torch.manual_seed(0)
    one = loader(8, shuffle=True, num_workers=1, persistent_workers=True)
    workers = [batches(one), batches(one)]
    torch.manual_seed(0)
    assert workers == [batches(other := loader(8, shuffle=True, num_workers=1)), batches(other)]


def test_prepared_is_prepared():
    one = loader()
    assert prepare_data_loader(one) is one
    with pytest.raises(InputError, match="list"):
        prepare_data_loader([1, 2])


def test_batches_are_put_on_the_device_only_when_asked_to():
    meta = torch.device("meta")
    assert [b.device.type for b in loader(2, prepare={"device": meta, "put_on_device": True})] == ["meta"]
    assert [b.device.type for b in loader(2, prepare={"device": meta})] == ["cpu"]


def test_a_device_mesh_gives_its_peers_the_same_batches():
    class Mesh:
        mesh_dim_names, shape = ("dp_shard", "tp"), (2, 2)

    shares = [
        batches(
            prepare_data_loader(
                DataLoader(torch.arange(8), batch_size=2), num_processes=4, process_index=rank, torch_device_mesh=Mesh()
            )
        )
        for rank in range(4)
    ]
    assert shares == [[[0, 1], [4, 5]]] * 2 + [[[2, 3], [6, 7]]] * 2


def test_rng_types_need_somebody_to_share_them():
    class Two:
        rank, world_size = 0, 2

    shared = []
    options = {"num_processes": 1, "process_index": 0, "comm": Two(), "rng_types": ["torch", "generator"]}
    list(loader(2, prepare={**options, "synchronize": shared.append}))
    assert [[str(kind.value) for kind in kinds] for kinds in shared] == [["torch"]]
    with pytest.raises(ConfigError, match="rng_types"):
        loader(2, prepare=options)
