"""Where a loader stands: its state at any batch, and starting late."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from drivetrain.core.errors import InputError
from drivetrain.data.prepare import prepare_data_loader
from drivetrain.data.skip import skip_first_batches


def loader(n=7, batch_size=2, prepare=None, **options):
    return prepare_data_loader(DataLoader(torch.arange(n), batch_size=batch_size, **options), **(prepare or {}))


def ranks(num, make, **prepare):
    """The loaders that ``num`` ranks would have."""
    return [prepare_data_loader(make(), num_processes=num, process_index=rank, **prepare) for rank in range(num)]


def batches(one):
    return [batch.tolist() for batch in one]


# --- place -----------------------------------------------------------------------------------------------------------


def transformed(x):
    return x.float() + torch.rand(len(x))


@pytest.mark.parametrize("stop", range(0, 9))
@pytest.mark.parametrize("generator", [False, True])
def test_state_at_any_place_equals_no_interruption(stop, generator):
    def make():
        own = torch.Generator().manual_seed(9) if generator else None
        return loader(16, 2, shuffle=True, generator=own)

    torch.manual_seed(0)
    one = make()
    list(one)
    expected, state = [], None
    for step, batch in enumerate(one):
        if step == stop:
            state = one.state_dict()
        expected.append(batch.tolist())
    if state is None:
        state, after = one.state_dict(), []
    else:
        after = expected[stop + 1 :]
    following = batches(one)
    torch.manual_seed(1)
    other = make()
    other.load_state_dict(state)
    assert (batches(other) if after else []) == after
    assert batches(other) == following


def test_random_transforms_are_not_drawn_ahead():
    def make():
        return loader(12, 2, collate_fn=lambda items: transformed(torch.stack(items)))

    torch.manual_seed(0)
    one, expected = make(), []
    for step, batch in enumerate(one):
        if step == 2:
            state, rng = one.state_dict(), torch.get_rng_state()
        expected.append(batch.tolist())
    other = make()
    other.load_state_dict(state)
    it = iter(other)
    torch.set_rng_state(rng)
    assert [batch.tolist() for batch in it] == expected[3:]


def test_state_is_json_able_and_tells_epoch_and_batch():
    one = loader(8, shuffle=True)
    assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (0, 0)
    for step, _ in enumerate(one):
        state = json.loads(json.dumps(one.state_dict()))
        assert (state["epoch"], state["batch"]) == ((0, step + 1) if step < 3 else (1, 0))
    assert one.state_dict()["epoch"] == 1


def test_an_iteration_that_has_given_nothing_yet_stands_at_its_start():
    one = loader(8)
    list(one)
    it = iter(one)
    assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (1, 0)
    next(it)
    assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (1, 1)


def test_a_loop_left_early_stands_at_the_next_epoch():
    one = loader(8)
    for _ in one:
        break
    assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (1, 0)


def test_set_epoch_keeps_a_restored_place_in_that_epoch_only():
    one = loader(8)
    one.load_state_dict({"epoch": 2, "batch": 3})
    one.set_epoch(2)
    assert batches(one) == [[6, 7]]
    one.load_state_dict({"epoch": 2, "batch": 3})
    one.set_epoch(3)
    assert len(batches(one)) == 4


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, {"epoch": "1", "batch": 0}, {"epoch": 0, "batch": -1}])
def test_a_state_that_is_none(state):
    with pytest.raises(InputError, match="not the state of a loader"):
        loader().load_state_dict(state)


# --- skipping --------------------------------------------------------------------------------------------------------


def test_skipping_reads_nothing_of_what_it_skips():
    class Watched(Dataset):
        read = []

        def __len__(self):
            return 12

        def __getitem__(self, index):
            self.read.append(index)
            return index

    skipped = skip_first_batches(prepare_data_loader(DataLoader(Watched(), batch_size=2)), 4)
    assert batches(skipped) == [[8, 9], [10, 11]] and Watched.read == [8, 9, 10, 11] and len(skipped) == 2


def test_skipping_takes_the_next_epoch():
    torch.manual_seed(0)
    whole = loader(16, 2, shuffle=True)
    epochs = [batches(whole) for _ in range(3)]
    torch.manual_seed(0)
    one = loader(16, 2, shuffle=True)
    assert batches(one) == epochs[0]
    skipped = skip_first_batches(one, 3)
    assert batches(skipped) == epochs[1][3:]
    assert batches(one) == epochs[2]


def test_skipping_replaces_a_restored_place():
    torch.manual_seed(0)
    one = loader(16, 2, shuffle=True)
    epochs = [batches(one) for _ in range(3)]
    one.load_state_dict({"epoch": 1, "batch": 5, "order": one.order.state_dict(inside=False)})
    assert batches(skip_first_batches(one, 2)) == epochs[1][2:]
    assert batches(one) == epochs[2]


def test_skipping_keeps_the_count_of_samples():
    _, second = ranks(2, lambda: DataLoader(torch.arange(9), batch_size=2))
    skipped = skip_first_batches(second, 1)
    assert [(b.tolist(), skipped.num_valid, skipped.remainder) for b in skipped] == [([6, 7], 2, 1), ([1, 2], 0, 1)]
    assert len(skipped) == 2 == len(skipped.batch_sampler)
    assert batches(skip_first_batches(skipped, 1)) == [[1, 2]]


def test_a_place_in_a_skipped_loader_counts_from_the_start_of_the_epoch():
    one = loader(16)
    for step, _ in enumerate(skip_first_batches(one, 3)):
        if step == 1:
            break
    skipped = skip_first_batches(one, 3)
    it = iter(skipped)
    next(it)
    assert skipped.state_dict()["batch"] == 4


def test_skipping_a_plain_loader():
    plain = DataLoader(torch.arange(7), batch_size=2)
    skipped = skip_first_batches(plain, 2)
    assert type(skipped) is DataLoader and batches(skipped) == [[4, 5], [6]] and len(skipped) == 2
    assert len(plain) == 4
    single = DataLoader(torch.arange(4).view(2, 2), batch_size=None)
    assert batches(skip_first_batches(single, 1)) == [[2, 3]]


def test_skipping_more_than_there_is():
    assert batches(skip_first_batches(loader(), 9)) == [] and len(skip_first_batches(loader(), 9)) == 0
    with pytest.raises(InputError, match="negative"):
        skip_first_batches(loader(), -1)
    with pytest.raises(InputError, match="list"):
        skip_first_batches([1], 1)


runs = st.fixed_dictionaries(
    {
        "n": st.integers(1, 40),
        "piece": st.integers(1, 4),
        "num": st.integers(1, 4),
        "split": st.booleans(),
        "even": st.booleans(),
        "drop_last": st.booleans(),
        "shuffle": st.booleans(),
        "stream": st.booleans(),
        "stop": st.integers(0, 12),
    }
)


class Counting(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


@settings(max_examples=150, deadline=None)
@given(runs)
def test_any_loader_goes_on_where_it_stood_and_gives_every_sample_once(run):
    def make(rank):
        size = run["piece"] * (run["num"] if run["split"] else 1)
        if run["stream"]:
            given_loader = DataLoader(Counting(run["n"]), size, drop_last=run["drop_last"])
        else:
            given_loader = DataLoader(torch.arange(run["n"]), size, shuffle=run["shuffle"], drop_last=run["drop_last"])
        one = prepare_data_loader(
            given_loader,
            num_processes=run["num"],
            process_index=rank,
            split_batches=run["split"],
            even_batches=run["even"],
        )
        one.order.seed = 5  # in one process nobody sends the seed
        return one

    seen = []
    for rank in range(run["num"]):
        one = make(rank)
        list(one)
        state, batches_of_epoch = None, []
        for step, batch in enumerate(one):
            seen += batch.tolist()[: one.num_valid]
            batches_of_epoch.append(batch.tolist())
            if step == run["stop"]:
                state = json.loads(json.dumps(one.state_dict()))
        if state is None:
            continue
        other = make(rank)
        other.load_state_dict(state)
        rest = batches_of_epoch[run["stop"] + 1 :]
        assert batches(other) == (rest or batches(one))
    round_size = run["piece"] * run["num"]
    total = run["n"] - run["n"] % round_size if run["drop_last"] else run["n"]
    assert len(seen) == len(set(seen)) == total
