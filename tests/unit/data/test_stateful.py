"""Loaders of torchdata: an iterable dataset goes on where it stood, without being read from the start."""

import importlib.util
import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from drivetrain.core.errors import MissingDependency
from drivetrain.data.prepare import prepare_data_loader

needs_torchdata = pytest.mark.skipif(importlib.util.find_spec("torchdata") is None, reason="torchdata is not installed")


class Placed(IterableDataset):
    def __init__(self, n):
        self.n, self.at, self.read = n, 0, []

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            self.read.append(self.at - 1)
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def batches(one):
    return [batch.tolist() for batch in one]


def test_without_torchdata_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdata", None)
    with pytest.raises(MissingDependency, match="pip install 'torchdata>=0.8.0'"):
        prepare_data_loader(DataLoader(Placed(4)), use_stateful_dataloader=True)


@needs_torchdata
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("num", [1, 2])
def test_a_stream_goes_on_where_it_stood(num, workers):
    def make(rank):
        given = DataLoader(Placed(22), batch_size=2, num_workers=workers)
        options = {"num_processes": num, "process_index": rank, "use_stateful_dataloader": True}
        return prepare_data_loader(given, **options), given.dataset

    for rank in range(num):
        one, _ = make(rank)
        whole = batches(one)
        for step, _ in enumerate(one):
            if step == 2:
                state = one.state_dict()
                break
        assert state["epoch"] == 1 and state["batch"] == 3
        other, data = make(rank)
        other.load_state_dict(state)
        assert batches(other) == whole[3:]
        assert workers or min(data.read) == 6 * num
        assert batches(other) == whole


@needs_torchdata
@pytest.mark.filterwarnings("ignore")
def test_a_map_style_loader_needs_no_help():
    one = prepare_data_loader(DataLoader(torch.arange(4)), use_stateful_dataloader=True)
    assert batches(one) == [[0], [1], [2], [3]] and type(one.inner) is DataLoader
