"""Sharing inputs between processes, by arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from drivetrain.core.errors import ConfigError, InputError
from drivetrain.runtime.process import share


def _shares(inputs, world, padding=False):
    return [share(inputs, rank, world, padding) for rank in range(world)]


def test_lists_and_tuples_keep_their_type():
    assert _shares(["A", "B", "C"], 2) == [["A", "B"], ["C"]]
    assert _shares(("A", "B", "C"), 2, padding=True) == [("A", "B"), ("C", "C")]
    assert _shares(["A"], 2) == [["A"], []]
    assert _shares(["A"], 2, padding=True) == [["A"], ["A"]]
    assert _shares([], 2, padding=True) == [[], []]


def test_tensors_arrays_and_data_sets():
    assert [x.tolist() for x in _shares(torch.arange(5), 2)] == [[0, 1, 2], [3, 4]]
    assert [x.tolist() for x in _shares(torch.arange(5), 2, padding=True)] == [[0, 1, 2], [3, 4, 4]]
    parts = _shares(np.arange(6).reshape(3, 2), 2, padding=True)
    assert [x.tolist() for x in parts] == [[[0, 1], [2, 3]], [[4, 5], [4, 5]]]
    assert [[int(d[i][0]) for i in range(len(d))] for d in _shares(TensorDataset(torch.arange(3)), 2)] == [[0, 1], [2]]


def test_tables_are_shared_by_place_and_large_arrays_by_slice():
    class Table:
        """What pandas tables have in common."""

        def __init__(self, rows):
            self.rows, self.shape, self.iloc = rows, (len(rows), 1), self

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, place):
            return self.rows[place] if isinstance(place, slice) else [self.rows[i] for i in place]

    assert _shares(Table("abc"), 2) == ["ab", "c"]
    assert _shares(Table(list("abc")), 2, padding=True) == [["a", "b"], ["c", "c"]]
    large = np.broadcast_to(np.int8(0), (10**12,))
    assert [len(part) for part in _shares(large, 2)] == [5 * 10**11] * 2


def test_a_mapping_is_left_alone_and_each_value_is_shared():
    given = {"a": [1, 2, 3], "b": torch.arange(3), "c": {"d": ("x", "y", "z")}}
    first, second = _shares(given, 2)
    assert first["a"] == [1, 2] and second["b"].tolist() == [2] and second["c"] == {"d": ("z",)}
    assert given["a"] == [1, 2, 3] and first is not given


def test_what_cannot_be_shared():
    assert _shares("whole", 2) == ["whole", "whole"]
    with pytest.raises(InputError, match="'b' is a str"):
        share({"a": [1, 2], "b": "xy"}, 0, 2)
    with pytest.raises(ConfigError, match="different lengths"):
        share({"a": [1, 2], "b": [1]}, 0, 2)


@given(st.lists(st.integers(), max_size=30), st.integers(1, 7))
def test_every_item_goes_to_one_rank_in_order(items, world):
    parts = _shares(items, world)
    assert sum(parts, []) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    padded = _shares(items, world, padding=True)
    assert len({len(p) for p in padded}) == 1
