"""What travels between ranks arrives equal, and no bigger than it is."""

import numpy as np
import pytest
import torch

from drivetrain.data.transport import packed, unpacked


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.int16).view(2, 3),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(2.5, dtype=torch.float64),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.randn(3, 4).t(),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, requires_grad=True),
    ],
    ids=lambda t: f"{t.dtype}-{list(t.shape)}-{t.layout}",
)
def test_tensors_arrive_equal(tensor):
    back = unpacked(packed(tensor))
    assert back.dtype == tensor.dtype and back.shape == tensor.shape and back.layout == tensor.layout
    assert torch.equal(back.to_dense(), tensor.detach().to_dense())


def test_structures_arrive_equal_and_may_be_written():
    back = unpacked(packed({"x": [torch.zeros(2), "a", None], "n": np.arange(3)}))
    assert back["x"][1:] == ["a", None] and back["n"].tolist() == [0, 1, 2]
    back["x"][0] += 1
    assert back["x"][0].tolist() == [1, 1]


def test_a_slice_travels_without_what_it_views():
    assert len(packed(torch.zeros(1_000_000)[:4])) < 1000
