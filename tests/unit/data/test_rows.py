"""Counting, cutting and joining rows of batches of any structure."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from drivetrain.core.errors import InputError
from drivetrain.data.rows import concatenate_rows, find_batch_size, slice_rows


@dataclass
class Record:
    x: torch.Tensor
    name: list


def test_the_number_of_rows_is_that_of_the_first_array():
    assert find_batch_size({"flag": True, "x": torch.ones(3, 2)}) == 3
    assert find_batch_size([torch.tensor(1.0), (np.ones((4, 1)),)]) == 4
    assert find_batch_size(Record(torch.ones(2), ["a", "b"])) == 2
    assert find_batch_size({"names": ["a", "b", "c"]}) == 3
    assert find_batch_size([["a", "b"], ["c", "d"]]) == 2
    assert find_batch_size({"n": 1}) is None
    assert find_batch_size("text") is None


def test_cutting_rows():
    batch = {
        "x": torch.arange(8).view(4, 2),
        "name": list("abcd"),
        "flag": True,
        "scale": torch.ones(3),
        "n": np.arange(4),
    }
    part = slice_rows(batch, 1, 3, 4)
    assert part["x"].tolist() == [[2, 3], [4, 5]] and part["name"] == ["b", "c"] and part["flag"] is True
    assert part["scale"].tolist() == [1, 1, 1] and part["n"].tolist() == [1, 2]


def test_a_list_of_arrays_is_a_container_even_with_as_many_entries_as_rows():
    x, y = slice_rows([torch.arange(2), torch.arange(2) + 10], 0, 1, 2)
    assert x.tolist() == [0] and y.tolist() == [10]
    targets = [{"boxes": torch.ones(3, 4)}, {"boxes": torch.ones(1, 4)}]
    images, cut = slice_rows((torch.ones(2, 5), targets), 1, 2, 2)
    assert images.shape == (1, 5) and cut == targets[1:]


def test_nothing_to_cut_is_an_error():
    with pytest.raises(InputError, match="nothing with 4 rows"):
        slice_rows({"x": torch.ones(3)}, 0, 2, 4)


def test_joining_rows():
    a = {"x": torch.tensor([[1], [2]]), "name": ["a", "b"], "flag": True, "r": Record(torch.ones(2), ["u", "v"])}
    b = {"x": torch.tensor([[3]]), "name": ["c"], "flag": True, "r": Record(torch.zeros(1), ["w"])}
    joined = concatenate_rows([a, b], [2, 1])
    assert joined["x"].tolist() == [[1], [2], [3]] and joined["name"] == ["a", "b", "c"] and joined["flag"] is True
    assert joined["r"].x.tolist() == [1, 1, 0] and joined["r"].name == ["u", "v", "w"]
    assert concatenate_rows([(torch.ones(1), np.ones(1)), (torch.ones(1), np.zeros(1))], [1, 1])[1].tolist() == [1, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.ones(2, 3), "flag": True},
        {"x": torch.ones(2, 2), "flag": False},
        {"x": [1, 2], "flag": True},
    ],
)
def test_what_cannot_be_joined_is_an_error(other):
    with pytest.raises(InputError, match="cannot be put together"):
        concatenate_rows([{"x": torch.ones(2, 2), "flag": True}, other], [2, 2])
