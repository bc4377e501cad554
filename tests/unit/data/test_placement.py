"""Every kind of batch arrives on its device with its own type; device "meta" stands for any other device."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch

from drivetrain.data.placement import mover, send_to_device

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str
    made: list = field(init=False, default_factory=list)


class Own:
    """Moves as only it knows how."""

    def __init__(self, keyword=True):
        self.calls, self.keyword = [], keyword

    def to(self, device, **options):
        if options and not self.keyword:
            raise TypeError("unexpected keyword")
        self.calls.append((str(device), options))
        return self


def kind(x):
    return x.device.type


def test_containers_keep_their_types():
    x = torch.ones(2)
    batch = {
        "list": [x, 1],
        "tuple": (x, "a"),
        "named": Pair(x, None),
        "ordered": OrderedDict(a=x),
        "user": UserDict(a=x),
        "default": defaultdict(list, a=x),
        "record": Record(x, "n"),
    }
    moved = send_to_device(batch, "meta")
    assert kind(moved["list"][0]) == kind(moved["tuple"][0]) == kind(moved["named"].x) == "meta"
    assert kind(moved["ordered"]["a"]) == kind(moved["user"]["a"]) == kind(moved["default"]["a"]) == "meta"
    assert kind(moved["record"].x) == "meta" and moved["record"].name == "n"
    assert {key: type(value) for key, value in moved.items()} == {key: type(value) for key, value in batch.items()}
    assert moved["default"].default_factory is list and moved["list"][1] == 1 and moved["tuple"][1] == "a"
    assert kind(batch["list"][0]) == "cpu" and kind(batch["record"].x) == "cpu"


def test_other_values_are_handed_on():
    values = ["text", b"bytes", 3, 2.5, None, True, {1, 2}, torch.float32, Own]
    assert send_to_device(values, "meta") == values


def test_objects_with_to_move_themselves_once():
    own, old = Own(), Own(keyword=False)
    assert send_to_device({"a": own, "b": [old]}, "meta", non_blocking=True) == {"a": own, "b": [old]}
    assert own.calls == [("meta", {"non_blocking": True})] and old.calls == [("meta", {})]


def test_packed_sequence_is_moved_as_a_whole():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    moved = send_to_device([packed], "cpu")
    assert type(moved[0]) is type(packed) and moved[0].data.tolist() == [1, 1, 1]


@pytest.mark.parametrize("keys", ["x", ["x"], ("x", "z")])
def test_skip_keys_at_every_depth(keys):
    x = torch.ones(1)
    moved = send_to_device([{"x": x, "y": {"x": x, "y": x}}], "meta", skip_keys=keys)
    assert moved[0]["x"] is x and moved[0]["y"]["x"] is x and kind(moved[0]["y"]["y"]) == "meta"


def test_a_batch_that_is_there_stays_itself():
    batch = {"x": torch.ones(1), "m": [torch.ones(1), "a", 1]}
    assert mover("cpu")(batch) is batch
    mixed = [torch.ones(1), torch.ones(1, device="meta")]
    assert [kind(x) for x in mover("meta")(mixed)] == ["meta", "meta"]
