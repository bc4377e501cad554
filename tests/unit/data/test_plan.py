"""Every table of the sharing rules, and that no sample is lost or doubled for any sizes and number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.plan import Ranks, num_split_batches, num_whole_batches, split_batches, whole_batches


def batches(n, size, drop_last=False):
    out = [list(range(i, min(i + size, n))) for i in range(0, n, size)]
    return out[:-1] if drop_last and out and len(out[-1]) < size else out


def shared(make, given, num, **options):
    return [list(make(given, Ranks(num, rank), **options)) for rank in range(num)]


def whole(n, size, num, drop_last, even):
    options = {"batch_size": size, "drop_last": drop_last, "even": even}
    return shared(whole_batches, batches(n, size, drop_last), num, **options)


def split(n, size, num, drop_last, even):
    options = {"batch_size": size, "drop_last": drop_last, "even": even}
    return shared(split_batches, batches(n, size, drop_last), num, **options)


def indices(ranks):
    return [[batch for batch, _ in rank] for rank in ranks]


F, T = False, True
# samples, drop_last, even_batches, rank 0, rank 1; None: any
WHOLE_OF_2 = [
    (8, None, None, [[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    (7, F, T, [[0, 1], [4, 5]], [[2, 3], [6, 0]]),
    (7, F, F, [[0, 1], [4, 5]], [[2, 3], [6]]),
    (7, T, None, [[0, 1]], [[2, 3]]),
    (6, F, T, [[0, 1], [4, 5]], [[2, 3], [0, 1]]),
    (6, F, F, [[0, 1], [4, 5]], [[2, 3]]),
    (6, T, None, [[0, 1]], [[2, 3]]),
    (5, F, T, [[0, 1], [4, 0]], [[2, 3], [1, 2]]),
    (5, F, F, [[0, 1], [4]], [[2, 3]]),
    (9, F, T, [[0, 1], [4, 5], [8, 0]], [[2, 3], [6, 7], [1, 2]]),
    (9, F, F, [[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]),
    (10, F, T, [[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]),
    (3, F, T, [[0, 1]], [[2, 0]]),
    (3, F, F, [[0, 1]], [[2]]),
    (3, T, None, [], []),
    (2, F, T, [[0, 1]], [[0, 1]]),
    (2, F, F, [[0, 1]], []),
    (1, F, T, [[0, 0]], [[0, 0]]),
    (1, F, F, [[0]], []),
    (0, None, None, [], []),
]


def any_of(flag):
    return (False, True) if flag is None else (flag,)


@pytest.mark.parametrize(("n", "drop", "even", "first", "second"), WHOLE_OF_2)
def test_table_of_whole_batches(n, drop, even, first, second):
    for drop_last in any_of(drop):
        for evened in any_of(even):
            assert indices(whole(n, 2, 2, drop_last, evened)) == [first, second]


@pytest.mark.parametrize(
    ("n", "even", "expected"),
    [
        (13, T, [[[0, 1, 2], [9, 10, 11]], [[3, 4, 5], [12, 0, 1]], [[6, 7, 8], [2, 3, 4]]]),
        (10, T, [[[0, 1, 2], [9, 0, 1]], [[3, 4, 5], [2, 3, 4]], [[6, 7, 8], [5, 6, 7]]]),
        (4, T, [[[0, 1, 2]], [[3, 0, 1]], [[2, 3, 0]]]),
        (13, F, [[[0, 1, 2], [9, 10, 11]], [[3, 4, 5], [12]], [[6, 7, 8]]]),
        (4, F, [[[0, 1, 2]], [[3]], []]),
    ],
)
def test_table_of_whole_batches_for_three(n, even, expected):
    assert indices(whole(n, 3, 3, False, even)) == expected


def test_batches_of_any_size_are_completed_by_whole_batches():
    options = {"batch_size": None, "drop_last": False}
    sizes = [[0], [1, 2], [3, 4, 5]]
    assert indices(shared(whole_batches, sizes, 2, even=True, **options)) == [[[0], [3, 4, 5]], [[1, 2], [0]]]
    assert indices(shared(whole_batches, sizes, 2, even=False, **options)) == [[[0], [3, 4, 5]], [[1, 2]]]
    assert indices(shared(whole_batches, [[0]], 2, even=True, **options)) == [[[0]], [[0]]]


SPLIT_OF_2 = [
    (8, None, None, [[0, 1], [4, 5]], [[2, 3], [6, 7]]),
    (7, F, T, [[0, 1], [4, 5]], [[2, 3], [6, 0]]),
    (7, F, F, [[0, 1], [4, 5]], [[2, 3], [6]]),
    (7, T, None, [[0, 1]], [[2, 3]]),
    (6, F, T, [[0, 1], [4, 5]], [[2, 3], [0, 1]]),
    (6, F, F, [[0, 1], [4, 5]], [[2, 3]]),
    (5, F, T, [[0, 1], [4, 0]], [[2, 3], [1, 2]]),
    (5, F, F, [[0, 1], [4]], [[2, 3]]),
    (3, F, T, [[0, 1]], [[2, 0]]),
    (2, F, T, [[0, 1]], [[0, 1]]),
    (2, F, F, [[0, 1]], []),
    (1, F, T, [[0, 0]], [[0, 0]]),
]


@pytest.mark.parametrize(("n", "drop", "even", "first", "second"), SPLIT_OF_2)
def test_table_of_split_batches(n, drop, even, first, second):
    for drop_last in any_of(drop):
        for evened in any_of(even):
            assert indices(split(n, 4, 2, drop_last, evened)) == [first, second]


def test_real_samples_are_counted():
    assert [[real for _, real in rank] for rank in whole(9, 2, 2, False, True)] == [[2, 2, 1], [2, 2, 0]]
    assert [[real for _, real in rank] for rank in split(5, 4, 2, False, True)] == [[2, 1], [2, 0]]
    assert [[real for _, real in rank] for rank in whole(5, 2, 2, False, False)] == [[2, 1], [2]]


def test_a_short_batch_before_the_end_is_not_lost():
    given = [[0, 1], [2], [3, 4], [5, 6]]
    options = {"batch_size": 2, "drop_last": False, "even": True}
    assert indices(shared(whole_batches, given, 2, **options)) == [[[0, 1], [3, 4]], [[2], [5, 6]]]
    assert indices(shared(split_batches, given, 2, **options)) == [[[0], [2], [3], [5]], [[1], [0], [4], [6]]]


plans = st.fixed_dictionaries(
    {
        "n": st.integers(0, 60),
        "piece": st.integers(1, 5),
        "num": st.integers(1, 8),
        "drop_last": st.booleans(),
        "even": st.booleans(),
        "is_split": st.booleans(),
    }
)


def planned(n, piece, num, drop_last, even, is_split):
    size = piece * num if is_split else piece
    return size, (split if is_split else whole)(n, size, num, drop_last, even)


def real_samples(ranks):
    return [index for rank in ranks for batch, real in rank for index in batch[:real]]


@given(plans)
def test_every_sample_comes_once(plan):
    size, ranks = planned(**plan)
    n = plan["n"]
    if plan["drop_last"]:
        round_size = size if plan["is_split"] else size * plan["num"]
        n -= n % round_size
    assert sorted(real_samples(ranks)) == list(range(n))
    if not plan["even"]:
        assert all(real == len(batch) for rank in ranks for batch, real in rank)


@given(plans)
def test_even_ranks_get_as_many_batches_of_one_size(plan):
    _, ranks = planned(**plan)
    if plan["even"] or plan["drop_last"]:
        assert len({tuple(len(batch) for batch, _ in rank) for rank in ranks}) == 1
        assert all(len(batch) == plan["piece"] for rank in ranks for batch, _ in rank)
    assert all(0 <= index < plan["n"] for rank in ranks for batch, _ in rank for index in batch)


@given(plans)
def test_ranks_interleaved_give_the_order_of_one_process(plan):
    _, ranks = planned(**plan)
    rounds = max(map(len, ranks))
    order = [index for at in range(rounds) for rank in ranks if at < len(rank) for index in rank[at][0][: rank[at][1]]]
    assert order == list(range(len(order)))


@given(plans)
def test_lengths_are_right(plan):
    size, ranks = planned(**plan)
    total = len(batches(plan["n"], size, plan["drop_last"]))
    options = {"drop_last": plan["drop_last"], "even": plan["even"]}
    for rank, own in enumerate(ranks):
        where = Ranks(plan["num"], rank)
        if plan["is_split"]:
            last = plan["n"] % size or size
            assert num_split_batches(total, last, where, batch_size=size, **options) == len(own)
        else:
            assert num_whole_batches(total, where, **options) == len(own)


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(1, 4), st.booleans())
def test_batches_of_any_size_come_once(sizes, num, even):
    given_batches, start = [], 0
    for size in sizes:
        given_batches.append(list(range(start, start + size)))
        start += size
    ranks = shared(whole_batches, given_batches, num, batch_size=None, drop_last=False, even=even)
    assert sorted(real_samples(ranks)) == list(range(start))
    if even:
        assert len({len(rank) for rank in ranks}) == 1
