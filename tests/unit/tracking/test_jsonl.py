"""The JSON-lines tracker: what is written, what comes back, and what a crash leaves."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.config import environ
from drivetrain.core.errors import InputError
from drivetrain.tracking.base import TrackerHub
from drivetrain.tracking.jsonl import BrokenRecord, JSONLinesTracker, read_jsonl
from ranks import run_script


@pytest.fixture
def tracker(tmp_path: Path) -> JSONLinesTracker:
    one = JSONLinesTracker("run", tmp_path)
    one.start()
    return one


def _lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()


def test_one_line_for_each_call(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    before = time.time()
    tracker.log({"loss": 0.5, "note": "ok", "group": {"a": 1}}, step=3)
    tracker.log({"loss": 0.25})
    tracker.finish()
    first, second = map(json.loads, _lines(tmp_path))
    assert list(first) == ["step", "time", "values"]
    assert (first["step"], first["values"]) == (3, {"loss": 0.5, "note": "ok", "group": {"a": 1}})
    assert (second["step"], second["values"]) == (None, {"loss": 0.25})
    assert before <= first["time"] <= second["time"] <= time.time()
    assert read_jsonl(tmp_path / "run") == read_jsonl(tmp_path / "run" / "metrics.jsonl") == [first, second]


def test_the_line_is_in_the_file_when_log_returns(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    tracker.log({"loss": 1.0}, step=0)
    assert [record["step"] for record in read_jsonl(tmp_path / "run")] == [0]
    tracker.finish()


def test_tensors_and_numpy_become_numbers(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    values = {
        "tensor": torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
        "row": torch.arange(3),
        "scalar": np.float32(0.25),
        "array": np.eye(2, dtype=np.int64),
        "flag": np.bool_(True),
        3: (1, 2),
    }
    tracker.log(values, step=np.int64(4))  # type: ignore[arg-type]
    tracker.finish()
    (record,) = map(json.loads, _lines(tmp_path))
    assert record["step"] == 4
    assert record["values"] == {
        "tensor": 0.5, "row": [0, 1, 2], "scalar": 0.25, "array": [[1, 0], [0, 1]], "flag": True, "3": [1, 2],
    }  # fmt: skip
    assert record["values"]["flag"] is True


def test_numbers_that_json_lacks(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    tracker.log({"a": math.nan, "b": [torch.tensor(math.inf), {"c": np.float64(-math.inf)}], "d": "nan"})
    tracker.finish()
    (line,) = _lines(tmp_path)
    assert json.loads(line, parse_constant=pytest.fail)["values"] == {
        "a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": "nan",
    }  # fmt: skip
    values = read_jsonl(tmp_path / "run")[0]["values"]
    assert math.isnan(values["a"])
    assert values["b"] == [math.inf, {"c": -math.inf}]
    assert values["d"] == "nan"


def test_every_float_comes_back_bit_for_bit(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    numbers = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-7
    for number in numbers:
        tracker.log({"x": number})
    tracker.finish()
    assert [record["values"]["x"] for record in read_jsonl(tmp_path / "run")] == numbers.tolist()


def test_what_json_has_no_form_for_is_kept_as_text(tracker: JSONLinesTracker, tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            tracker.log({"where": Path("a/b"), "dtype": torch.float16})
    tracker.finish()
    assert [r["values"] for r in read_jsonl(tmp_path / "run")] == [{"where": "a/b", "dtype": "torch.float16"}] * 2
    assert len(caplog.messages) == 2 and "PosixPath" in caplog.messages[0] and "dtype" in caplog.messages[1]


def test_settings(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    tracker.store_init_configuration(
        {"lr": 0.1, "where": Path("x"), "w": torch.tensor([1, 2]), "deep": {"inf": math.inf}}
    )
    tracker.store_init_configuration({"lr": 0.2})
    tracker.finish()
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"lr": 0.2}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json", "metrics.jsonl"]


def test_settings_of_every_kind(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    tracker.store_init_configuration(
        {"where": Path("x"), "w": torch.tensor([1, 2]), "deep": {"inf": math.inf, "none": None}}
    )
    tracker.finish()
    text = (tmp_path / "run" / "config.json").read_text()
    assert json.loads(text) == {"where": "x", "w": [1, 2], "deep": {"inf": "Infinity", "none": None}}


def test_a_second_run_of_the_name_continues(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    tracker.log({"loss": 1.0}, step=0)
    tracker.finish()
    again = JSONLinesTracker("run", tmp_path)
    again.start()
    again.log({"loss": 0.5}, step=1)
    again.finish()
    assert [(r["step"], r["values"]["loss"]) for r in read_jsonl(tmp_path / "run")] == [(0, 1.0), (1, 0.5)]


def test_a_cut_off_last_line_is_not_read_and_not_grown_upon(tracker: JSONLinesTracker, tmp_path: Path, caplog) -> None:
    for step in range(3):
        tracker.log({"loss": step / 4}, step=step)
    tracker.finish()
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for length in range(start + 1, len(whole)):
        path.write_bytes(whole[:length])
        kept = [0, 1, 2] if length == len(whole) - 1 else [0, 1]  # only the newline is missing: still a record
        assert [r["step"] for r in read_jsonl(path)] == kept
    for length, kept in ((start + 10, [0, 1]), (len(whole) - 1, [0, 1, 2])):
        path.write_bytes(whole[:length])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            again = JSONLinesTracker("run", tmp_path)
            again.start()
        again.log({"loss": 9.0}, step=9)
        again.finish()
        assert [r["step"] for r in read_jsonl(path)] == [*kept, 9]
        assert ["did not finish" in text for text in caplog.messages] == [True] * (kept == [0, 1])


def test_a_long_cut_off_line_is_removed_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    good = b'{"step": 0, "time": 0.0, "values": {}}\n'
    path.write_bytes(good + b'{"step": 1, "values": {"x": "' + b"y" * 200_000)
    one = JSONLinesTracker("run", tmp_path)
    one.start()
    one.finish()
    assert path.read_bytes() == good


def test_a_cut_inside_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"step": 0, "ti')
    assert read_jsonl(path) == []
    one = JSONLinesTracker("run", tmp_path)
    one.start()
    one.finish()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("broken", [b"{oops}", b"", b"[1, 2]", b'{"step": 1}', b"\xff\xfe"])
def test_a_broken_line_in_the_middle_names_itself(tmp_path: Path, broken: bytes) -> None:
    good = b'{"step": 0, "time": 0.0, "values": {}}'
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join([good, broken, good, b""]))
    with pytest.raises(BrokenRecord, match=r"metrics\.jsonl, line 2, is not a record"):
        read_jsonl(path)


KILLED = """
import os, signal, sys
from drivetrain.tracking.jsonl import JSONLinesTracker
one = JSONLinesTracker("run", sys.argv[1])
one.start()
for step in range(100):
    one.log({"loss": 1.0 / (step + 1)}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_everything_logged_outlives_a_kill(tmp_path: Path) -> None:
    out = run_script([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60)
    assert out.returncode == -signal.SIGKILL
    records = read_jsonl(tmp_path / "run")
    assert [record["step"] for record in records] == list(range(100))
    assert records[9]["values"]["loss"] == 1.0 / 10


def test_logging_after_finish_continues_the_file(tracker: JSONLinesTracker, tmp_path: Path) -> None:
    tracker.log({"a": 1})
    tracker.finish()
    tracker.finish()
    assert tracker.tracker is None
    tracker.log({"a": 2})
    tracker.finish()
    assert [r["values"]["a"] for r in read_jsonl(tmp_path / "run")] == [1, 2]


def test_further_arguments_are_an_error(tracker: JSONLinesTracker) -> None:
    with pytest.raises(InputError, match="takes no further arguments, but got commit"):
        tracker.log({"a": 1}, commit=True)
    tracker.finish()


def test_by_name_through_the_hub(tmp_path: Path) -> None:
    hub = TrackerHub("jsonl", os.fspath(tmp_path), is_main=True)
    hub.init_trackers("proj", {"lr": 0.1})
    hub.log({"loss": torch.tensor(0.5)}, step=1)
    hub.finish()
    assert [r["values"] for r in read_jsonl(tmp_path / "proj")] == [{"loss": 0.5}]
    assert json.loads((tmp_path / "proj" / "config.json").read_text()) == {"lr": 0.1}


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with environ.patched(RANK="1", WORLD_SIZE="2"):
        one = JSONLinesTracker("run", tmp_path)
        one.start()
        one.store_init_configuration({"lr": 1})
        one.log({"loss": 1.0})
        one.finish()
    assert list(tmp_path.iterdir()) == []
