"""Trees of leaves are rebuilt with their own types and never changed in place."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass

from drivetrain.core.tree import leaves, map_leaves

Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Frozen:
    x: int
    name: str


@dataclass
class Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x > 10:
            raise ValueError("made once, not again")


def _double(data):
    return map_leaves(lambda x: x * 2, data, leaf=lambda x: isinstance(x, int))


def test_every_container_keeps_its_type():
    data = [1, (2, Pair(3, "x")), {"a": 4}, OrderedDict(b=5), UserDict(c=6), defaultdict(list, d=7), Frozen(8, "n")]
    out = _double(data)
    assert out[:3] == [2, (4, Pair(6, "x")), {"a": 8}]
    assert type(out[1][1]) is Pair
    assert type(out[3]) is OrderedDict and out[3]["b"] == 10
    assert type(out[4]) is UserDict and out[4]["c"] == 12
    assert type(out[5]) is defaultdict and out[5].default_factory is list and out[5]["d"] == 14
    assert out[6] == Frozen(16, "n")
    assert data[0] == 1 and data[2] == {"a": 4} and data[6] == Frozen(8, "n")


def test_a_record_is_copied_without_its_constructor():
    assert _double(Checked(9)).x == 18


def test_leaves_come_in_order():
    assert list(leaves({"a": [1, 2], "b": (3, {"c": 4})})) == [1, 2, 3, 4]
    assert list(leaves([1, "x", 2], leaf=lambda x: isinstance(x, int))) == [1, 2]
