"""What a dispatching loader deals out: the table of the rules, batches that cannot be joined, custom cuts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.errors import InputError
from drivetrain.data.collation import UNKNOWN
from drivetrain.data.rounds import Dealer, Handed


def source(batches, rows=None):
    return [
        Handed(batch, len(batch) if rows is None else rows, UNKNOWN, at == len(batches) - 1)
        for at, batch in enumerate(batches)
    ]


def of(n, size, drop_last=False):
    batches = [torch.arange(start, min(start + size, n)) for start in range(0, n, size)]
    return batches[:-1] if drop_last and batches and len(batches[-1]) < size else batches


def dealt(batches, num=2, split=False, drop_last=False, size=None, rows=None, slice_fn=None):
    rounds = list(Dealer(num, split, drop_last, size, slice_fn).deal(source(batches, rows)))
    return [[shares[rank] for shares in rounds] for rank in range(num)]


def indices(ranks):
    return [[share.batch.tolist() for share in rank] for rank in ranks]


@pytest.mark.parametrize(
    ("n", "size", "options", "first", "second", "remainder"),
    [
        (7, 2, {}, [[0, 1], [4, 5]], [[2, 3], [6, 0]], 3),
        (8, 2, {}, [[0, 1], [4, 5]], [[2, 3], [6, 7]], 4),
        (6, 2, {}, [[0, 1], [4]], [[2, 3], [5]], 2),
        (5, 2, {}, [[0, 1], [4]], [[2, 3], [0]], 1),
        (5, 2, {"drop_last": True}, [[0, 1]], [[2, 3]], 4),
        (6, 2, {"drop_last": True}, [[0, 1]], [[2, 3]], 4),
        (7, 4, {"split": True}, [[0, 1], [4, 5]], [[2, 3], [6, 0]], 3),
        (5, 4, {"split": True}, [[0, 1], [4]], [[2, 3], [0]], 1),
    ],
)
def test_table(n, size, options, first, second, remainder):
    ranks = dealt(of(n, size, options.get("drop_last", False)), size=size, **options)
    assert indices(ranks) == [first, second]
    for rank in ranks:
        assert [share.last for share in rank] == [False] * (len(rank) - 1) + [True]
        assert [share.remainder for share in rank] == [-1] * (len(rank) - 1) + [remainder]


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 8), st.booleans(), st.booleans())
def test_every_sample_once(n, size, num, split, drop_last):
    size *= num if split else 1
    ranks = dealt(of(n, size, drop_last), num, split, drop_last, size)
    rounds = list(zip(*ranks, strict=True))
    order = [x for round_ in rounds for share in round_ for x in share.batch.tolist()[: share.real]]
    kept = n - n % (size if split else size * num) if drop_last else n
    assert order == list(range(kept))
    assert all(share.rows == len(share.batch) for round_ in rounds for share in round_)
    assert all(len({share.rows for share in round_}) == 1 for round_ in rounds)


def test_batches_of_different_shapes_stay_whole():
    batches = [torch.zeros(2, n) for n in (3, 5, 4, 2, 1)]
    ranks = dealt(batches, num=3, size=2)
    assert [[list(share.batch.shape) for share in rank] for rank in ranks] == [
        [[2, 3], [2, 2]],
        [[2, 5], [2, 1]],
        [[2, 4], [2, 2]],
    ]
    assert [[share.real for share in rank] for rank in ranks] == [[2, 2], [2, 2], [2, 0]]
    assert ranks[2][-1].last and ranks[2][-1].remainder == 4


def test_batches_without_rows_stay_whole():
    first, second = dealt([{"a": 1}, {"a": 2}, {"a": 3}], rows=UNKNOWN)
    assert [share.batch["a"] for share in first] == [1, 3] and [share.batch["a"] for share in second] == [2, 3]
    assert [share.real for share in second] == [None, 0]
    with pytest.raises(InputError, match="holds no tensor"):
        dealt([{"a": 1}], split=True, rows=UNKNOWN)


def test_ready_made_batches_of_different_lengths_are_not_rearranged():
    first, second = dealt([torch.arange(3), torch.arange(5)], rows=UNKNOWN)
    assert indices([first, second]) == [[[0, 1, 2]], [[0, 1, 2, 3, 4]]]


def test_strings_and_flags_go_with_their_rows():
    batch = {"flag": True, "x": torch.arange(4), "name": ["a", "b", "c", "d"]}
    first, second = dealt([batch], split=True, size=4, rows=4)
    assert first[0].batch["name"] == ["a", "b"] and second[0].batch["name"] == ["c", "d"]
    assert second[0].batch["flag"] is True and second[0].batch["x"].tolist() == [2, 3]


def test_fewer_samples_than_ranks():
    assert indices(dealt([torch.tensor([7])], num=4, size=2)) == [[[7]], [[7]], [[7]], [[7]]]


def test_a_cut_of_the_user():
    def reverse(batch, part, process_index, num_processes):
        return batch[part].flip(0) + 100 * process_index

    first, second = dealt(of(4, 2), size=2, slice_fn=reverse)
    assert indices([first, second]) == [[[1, 0]], [[103, 102]]]
