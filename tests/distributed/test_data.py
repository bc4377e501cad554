"""Loaders on real ranks: one order whatever the local seeds, dispatch of anything, errors that reach everybody."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ranks import rank_outcomes, run_ranks


def _comm():
    from drivetrain.runtime.comm import TorchComm

    comm = TorchComm("gloo", torch.device("cpu"), timeout=timedelta(seconds=20))
    torch.manual_seed(100 + comm.rank)
    random.seed(100 + comm.rank)
    return comm


def _prepared(comm, given, **options):
    from drivetrain.data.prepare import prepare_data_loader

    return prepare_data_loader(given, torch.device("cpu"), put_on_device=True, comm=comm, **options)


def _flat(loader):
    return [x for batch in loader for x in batch.tolist()]


def _once(per_rank, n):
    """Whether every sample came once, over the ranks."""
    return sorted(x for rank in per_rank for x in rank) == list(range(n))


# --- one order -------------------------------------------------------------------------------------------------------


class Own(Sampler):
    """Shuffles by a generator that nobody else knows of."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        order = list(range(self.n))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return self.n


class OwnBatches(Own):
    """A batch sampler that knows no batch size."""

    def __iter__(self):
        order = list(super().__iter__())
        return iter([order[at : at + 4] for at in range(0, self.n, 4)])

    def __len__(self):
        return self.n // 4


def _loaders(rank):
    data = torch.arange(32)
    return {
        "shuffle": (DataLoader(data, 4, shuffle=True), {}),
        "workers": (DataLoader(data, 4, shuffle=True, num_workers=1), {}),
        "generator": (DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(rank)), {}),
        "sampler with generator": (
            DataLoader(data, 4, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(rank))),
            {},
        ),
        "seedable": (DataLoader(data, 4, shuffle=True), {"use_seedable_sampler": True}),
        "subset": (DataLoader(data, 4, sampler=SubsetRandomSampler(range(32))), {}),
        "split": (DataLoader(data, 8, shuffle=True), {"split_batches": True}),
        "own sampler": (DataLoader(data, 4, sampler=Own(32)), {}),
        "own batch sampler": (DataLoader(data, batch_sampler=OwnBatches(32)), {}),
        "own sampler in batches": (
            DataLoader(data, batch_sampler=BatchSampler(Own(32), 4, False)),
            {},
        ),
        "map-style dispatched": (DataLoader(data, 4, shuffle=True), {"dispatch_batches": True}),
    }


def _orders():
    comm = _comm()
    out = {}
    for name, (given, options) in _loaders(comm.rank).items():
        loader = _prepared(comm, given, **options)
        epochs = [_flat(loader), _flat(loader)]
        loader.set_epoch(0)
        out[name] = [*epochs, _flat(loader), len(loader)]
    return out


def test_ranks_that_are_seeded_differently_share_one_order():
    first, second = run_ranks(_orders)
    for name in first:
        for epoch in range(3):
            assert _once([first[name][epoch], second[name][epoch]], 32), name
        assert first[name][0] != first[name][1], name
        assert first[name][3] == second[name][3] == 4, name
    # set_epoch fixes the order of all shuffles but those of a class of the user's
    for name in ("shuffle", "workers", "seedable", "subset", "split", "map-style dispatched"):
        assert first[name][2] == first[name][0], name


def _weighted():
    comm = _comm()
    weights = torch.ones(32)
    loader = _prepared(comm, DataLoader(torch.arange(32), 4, sampler=WeightedRandomSampler(weights, 32, False)))
    return _flat(loader)


def test_weighted_sampler_shares_one_order():
    assert _once(run_ranks(_weighted), 32)


def _three_ranks():
    comm = _comm()
    loader = _prepared(comm, DataLoader(torch.arange(20), 2, shuffle=True))
    return [[batch.tolist()[: loader.num_valid], loader.remainder, loader.end_of_data] for batch in loader]


def test_three_ranks_see_every_sample_once():
    ranks = run_ranks(_three_ranks, n=3)
    assert _once([[x for batch, _, _ in rank for x in batch] for rank in ranks], 20)
    assert [[remainder for _, remainder, _ in rank] for rank in ranks] == [[2] * 4] * 3
    assert [[end for _, _, end in rank] for rank in ranks] == [[False] * 3 + [True]] * 3


def _resumed():
    comm = _comm()
    loader = _prepared(comm, DataLoader(torch.arange(24), 2, shuffle=True))
    _flat(loader)
    expected, state = [], None
    for step, batch in enumerate(loader):
        expected.append(batch.tolist())
        if step == 2:
            state = comm.broadcast_object(loader.state_dict())
    torch.manual_seed(7 + comm.rank)
    other = _prepared(comm, DataLoader(torch.arange(24), 2, shuffle=True))
    other.load_state_dict(state)
    return [[batch.tolist() for batch in other] == expected[3:], _flat(other) == _flat(loader)]


def test_the_state_of_rank_zero_serves_all_ranks():
    assert run_ranks(_resumed) == [[True, True]] * 2


def _failing_order():
    comm = _comm()

    class Failing(Own):
        def __iter__(self):
            raise KeyError("lengths-17")

    return _flat(_prepared(comm, DataLoader(torch.arange(8), sampler=Failing(8))))


def test_a_failing_sampler_fails_everywhere():
    first, second = rank_outcomes(_failing_order)
    assert first.error == "KeyError" and second.error == "CollectiveError"
    assert "lengths-17" in str(first.text) and "lengths-17" in str(second.text)


# --- streams ---------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __init__(self, n, fail_at=None):
        self.n, self.fail_at = n, fail_at

    def __iter__(self):
        for x in torch.arange(self.n):
            if self.fail_at == int(x):
                raise ValueError("boom-17")
            yield x


class ShuffledStream(Stream):
    def __iter__(self):
        order = list(range(self.n))
        random.shuffle(order)
        return iter(order)


def _seen(loader):
    return [[batch.tolist(), loader.num_valid, loader.end_of_data, loader.remainder] for batch in loader]


def _dispatched(n, batch_size, split, drop_last, workers):
    comm = _comm()
    given = DataLoader(Stream(n), batch_size, num_workers=workers, drop_last=drop_last)
    loader = _prepared(comm, given, split_batches=split)
    return [_seen(loader), _seen(loader)]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ((7, 2, False, False, 0), [[[0, 1], 2], [[4, 5], 2]], [[[2, 3], 2], [[6, 0], 1]]),
        ((5, 2, False, False, 0), [[[0, 1], 2], [[4], 1]], [[[2, 3], 2], [[0], 0]]),
        ((5, 2, False, True, 0), [[[0, 1], 2]], [[[2, 3], 2]]),
        ((7, 4, True, False, 0), [[[0, 1], 2], [[4, 5], 2]], [[[2, 3], 2], [[6, 0], 1]]),
        ((7, 2, False, False, 2), [[[0, 1], 2], [[4, 5], 2]], [[[2, 3], 2], [[6, 0], 1]]),
        ((0, 2, False, False, 0), [], []),
    ],
)
def test_dispatch_gives_each_rank_its_own_batches(options, first, second):
    for rank, expected in zip(run_ranks(_dispatched, args=options), (first, second), strict=True):
        for epoch in rank:
            assert [one[:2] for one in epoch] == expected
            assert [one[2] for one in epoch] == [False] * (len(expected) - 1) + [True] * bool(expected)
            total = sum(one[1] for pair in (first[-1:], second[-1:]) for one in pair)
            assert [one[3] for one in epoch] == [-1] * (len(expected) - 1) + [total] * bool(expected)


def _anything(samples):
    x = torch.stack(samples)
    return {
        "flag": True,
        "names": [f"n{int(i)}" for i in x],
        "nested": ({"x": x}, torch.ones(len(x), int(x.max()) + 1)),
        "half": x.to(torch.bfloat16),
        "nothing": None,
    }


def _dispatch_anything():
    comm = _comm()
    loader = _prepared(comm, DataLoader(Stream(8), 2, collate_fn=_anything))
    out = []
    for batch in loader:
        assert type(batch["nested"]) is tuple and batch["half"].dtype is torch.bfloat16 and batch["nothing"] is None
        out.append([batch["flag"], batch["names"], batch["nested"][0]["x"].tolist(), list(batch["nested"][1].shape)])
    return out


def test_dispatch_of_any_structure_type_and_shape():
    assert run_ranks(_dispatch_anything) == [
        [[True, ["n0", "n1"], [0, 1], [2, 2]], [True, ["n4", "n5"], [4, 5], [2, 6]]],
        [[True, ["n2", "n3"], [2, 3], [2, 4]], [True, ["n6", "n7"], [6, 7], [2, 8]]],
    ]


def _dispatch_skipped():
    from drivetrain.data.skip import skip_first_batches

    comm = _comm()
    loader = _prepared(comm, DataLoader(Stream(11), 2))
    skipped = skip_first_batches(loader, 1)
    out = [_seen(skipped)]
    it = iter(loader)
    next(it)
    state = comm.broadcast_object(loader.state_dict())
    other = _prepared(comm, DataLoader(Stream(11), 2))
    other.load_state_dict(state)
    return [*out, _seen(other)]


def test_skipping_and_resuming_a_dispatched_stream():
    first, second = run_ranks(_dispatch_skipped)
    assert [one[0] for one in first[0]] == [one[0] for one in first[1]] == [[4, 5], [8, 9]]
    assert [one[:2] for one in second[0]] == [one[:2] for one in second[1]]
    assert [one[:2] for one in second[0]][0] == [[6, 7], 2] and second[0][1][:2][1] == 1


def _dispatch_failing(fail_at, workers):
    comm = _comm()
    return _flat(_prepared(comm, DataLoader(Stream(8, fail_at), 2, num_workers=workers)))


@pytest.mark.parametrize(("fail_at", "workers"), [(0, 0), (5, 0), (5, 1)])
def test_an_error_on_the_reading_rank_reaches_all(fail_at, workers):
    first, second = rank_outcomes(_dispatch_failing, args=(fail_at, workers))
    assert first.error == "ValueError" and second.error == "CollectiveError"
    assert "boom-17" in str(first.text) and "boom-17" in str(second.text)
    assert "rank 0 failed while it read" in str(second.text)


class Unsendable:
    def __reduce__(self):
        raise TypeError("cannot travel")


def _dispatch_unsendable():
    comm = _comm()
    given = DataLoader(Stream(8), 2, collate_fn=lambda samples: [torch.stack(samples), Unsendable()])
    return [len(batch) for batch in _prepared(comm, given)]


def test_what_cannot_travel_is_an_error_everywhere():
    for outcome in rank_outcomes(_dispatch_unsendable):
        assert "cannot travel" in str(outcome.text)


def _shared_stream(workers):
    comm = _comm()
    loader = _prepared(comm, DataLoader(ShuffledStream(12), 2, num_workers=workers), dispatch_batches=False)
    return [_flat(loader), _flat(loader)]


def test_a_shuffled_stream_read_by_workers_of_all_ranks():
    first, second = run_ranks(_shared_stream, args=(2,))
    assert _once([first[0], second[0]], 12) and _once([first[1], second[1]], 12) and first[0] != first[1]


def _peers():
    class Mesh:
        mesh_dim_names, shape = ("dp_shard", "tp"), (1, 2)

    comm = _comm()
    streams = [
        _seen(_prepared(comm, DataLoader(Stream(5), 2), torch_device_mesh=Mesh(), dispatch_batches=dispatch))
        for dispatch in (True, False)
    ]
    shuffled = _flat(_prepared(comm, DataLoader(torch.arange(16), 2, shuffle=True), torch_device_mesh=Mesh()))
    return [*streams, shuffled]


def test_peers_of_one_data_rank_get_the_same_batches():
    expected = [[[0, 1], 2, False], [[2, 3], 2, False], [[4], 1, True]]
    first, second = run_ranks(_peers)
    for dispatched, read, shuffled in (first, second):
        assert [one[:3] for one in dispatched] == [one[:3] for one in read] == expected
        assert sorted(shuffled) == list(range(16))
    assert first[2] == second[2]


def _rng():
    from drivetrain.platforms.cpu import Cpu
    from drivetrain.training import rng

    comm = _comm()

    class Zeros(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return 0

    def synchronize(kinds):
        rng.synchronize(kinds, comm, Cpu())

    loader = _prepared(comm, DataLoader(Zeros()), rng_types=["torch", "generator"], synchronize=synchronize)
    return [torch.rand(1).item() for _ in loader]


def test_random_state_of_rank_zero_is_shared_when_asked_for():
    first, second = run_ranks(_rng)
    assert first == second
