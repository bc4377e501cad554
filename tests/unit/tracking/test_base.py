"""What a tracker must have, what log_with may ask for, and who is fed by the hub."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.config import environ
from drivetrain.config.enums import LoggerType
from drivetrain.core.errors import ConfigError, MissingDependency
from drivetrain.tracking import base
from drivetrain.tracking.base import GeneralTracker, Tracker, TrackerHub, on_main_process, resolve
from drivetrain.tracking.jsonl import JSONLinesTracker
from drivetrain.tracking.tensorboard import TensorBoardTracker


class Recorder(Tracker):
    """Keeps the calls it gets. Its library's object exists only between start and finish."""

    name = "recorder"
    requires_logging_directory = False

    def __init__(self, run_name: str = "", **kwargs: Any) -> None:
        super().__init__()
        self.calls: list[tuple] = [("init", run_name, kwargs)]

    @property
    def tracker(self) -> object:
        return self.library

    def start(self) -> None:
        self.library = object()
        self.calls.append(("start",))

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("config", values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.calls.append(("log", values, step, kwargs))

    def finish(self) -> None:
        self.calls.append(("finish",))


def _recorders(hub: TrackerHub) -> list[Recorder]:
    assert all(isinstance(one, Recorder) for one in hub.trackers)
    return [one for one in hub.trackers if isinstance(one, Recorder)]


class InFolder(Recorder):
    name = "in_folder"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str, **kwargs: Any) -> None:
        super().__init__(run_name, logging_dir=logging_dir, **kwargs)


class NeedsNowhere(Recorder):
    name = "needs_nowhere"
    packages = ("nowhere_to_be_found", "nor_this")


EXTRA = {cls.name: cls for cls in (Recorder, InFolder, NeedsNowhere)}


# --- the class ---


def test_an_incomplete_tracker_names_everything_it_lacks() -> None:
    class Empty(Tracker):
        pass

    with pytest.raises(NotImplementedError, match="Empty lacks `name`, `requires_logging_directory`, `tracker`"):
        Empty()

    class Half(Tracker):
        name = "half"

        @property
        def tracker(self) -> None:
            return None

    with pytest.raises(NotImplementedError, match="Half lacks `requires_logging_directory`\\."):
        Half()


def test_the_property_tracker_is_not_run_before_start() -> None:
    one = Recorder()
    with pytest.raises(AttributeError):
        _ = one.tracker
    one.start()
    assert one.tracker is one.library


def test_a_blank_tracker_does_nothing() -> None:
    blank = GeneralTracker(_blank=True)
    assert blank.main_process_only is True
    assert [blank.start(), blank.store_init_configuration({}), blank.log({"a": 1}, step=1, b=2), blank.finish()] == [
        None
    ] * 4


def test_a_new_tracker_touches_neither_ranks_nor_library(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it would fail
    TensorBoardTracker("run", tmp_path, max_queue=1)
    JSONLinesTracker("run", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("rank, main_only, ran", [(0, True, 7), (1, True, None), (0, False, 7), (1, False, 7)])
def test_on_main_process_decides_at_the_call(rank: int, main_only: bool, ran: int | None) -> None:
    class Seven(Recorder):
        main_process_only = main_only

        @on_main_process
        def seven(self, *, add: int = 0) -> int:
            """Says seven."""
            return 7 + add

    one = Seven()
    assert one.seven.__doc__ == "Says seven."
    with environ.patched(RANK=str(rank), WORLD_SIZE="2"):
        assert one.seven(add=0) == ran


def test_plain_turns_arrays_into_python_numbers() -> None:
    data = {
        "bf16": torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
        "nested": [torch.arange(2), (np.float32(0.25), np.int64(3), np.bool_(True))],
        "array": np.ones((1, 2)),
        "other": "text",
        "none": None,
    }
    out = base.plain(data)
    assert out == {
        "bf16": 0.5,
        "nested": [[0, 1], (0.25, 3, True)],
        "array": [[1.0, 1.0]],
        "other": "text",
        "none": None,
    }
    assert [type(v) for v in (out["bf16"], *out["nested"][1])] == [float, float, int, bool]
    assert isinstance(data["bf16"], torch.Tensor)


# --- what log_with asks for ---


def test_nothing_is_asked_for() -> None:
    assert resolve(None) == []
    assert resolve([]) == []


def test_names_members_and_instances() -> None:
    one = Recorder()
    assert resolve("tensorboard", "logs") == [LoggerType.TENSORBOARD]
    assert resolve(LoggerType.TENSORBOARD, "logs") == [LoggerType.TENSORBOARD]
    assert resolve(["tensorboard", one, LoggerType.TENSORBOARD, "jsonl"], "logs") == [
        LoggerType.TENSORBOARD,
        one,
        "jsonl",
    ]
    assert resolve((one,)) == [one]


def test_registered_classes_stay_names() -> None:
    assert resolve(["recorder", "in_folder"], "logs", EXTRA) == ["recorder", "in_folder"]
    with pytest.raises(ValueError, match="Logging with `in_folder` requires a `logging_dir`"):
        resolve("in_folder", None, EXTRA)


def test_a_registered_class_wins_over_ours() -> None:
    class Mine(Recorder):
        name = "tensorboard"

    hub = TrackerHub("tensorboard", is_main=True, extra={"tensorboard": Mine})
    hub.init_trackers("run")
    assert type(hub.trackers[0]) is Mine


@pytest.mark.parametrize("wrong", ["tensorbord", 3, Recorder, ["jsonl", "nope"]])
def test_an_unknown_tracker_lists_the_known(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"is no tracker.*'all', 'aim', 'tensorboard', 'wandb'.*'jsonl'"):
        resolve(wrong, "logs")


@pytest.mark.parametrize("name", ["tensorboard", "jsonl"])
def test_a_folder_is_needed(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^Logging with `{name}` requires a `logging_dir`"):
        resolve(name)


def test_a_missing_package_is_an_error_with_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        MissingDependency, match=r"`needs_nowhere` needs the package `nowhere_to_be_found`.*pip install nowh"
    ):
        resolve("needs_nowhere", None, EXTRA)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="Run: pip install tensorboard"):
        resolve("tensorboard", "logs")


def test_all_takes_what_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Recorder()
    assert LoggerType.TENSORBOARD in resolve("all")
    assert resolve([LoggerType.ALL, one, "tensorboard"])[:2] == [one, LoggerType.TENSORBOARD]
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert LoggerType.TENSORBOARD not in resolve("all")


def test_a_tracker_known_by_name_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.registry, "names", lambda kind: ["jsonl"])
    with pytest.raises(ConfigError, match=r"`aim` is known by name, but this version.*\['jsonl'\]"):
        resolve("aim", "logs")
    assert resolve("all") == []


@pytest.mark.parametrize(
    "cls, why",
    [
        (dict, "not a subclass of GeneralTracker"),
        (type("NoName", (Tracker,), {}), "NoName has no `name`"),
        (type("Empty", (Tracker,), {"name": ""}), "Empty has no `name`"),
        (type("NoFolder", (Tracker,), {"name": "x"}), "NoFolder lacks `requires_logging_directory`"),
    ],
)
def test_a_class_to_be_known_by_name_is_checked(cls: type, why: str) -> None:
    base.check_tracker_class(Recorder)
    with pytest.raises(ValueError, match=why):
        base.check_tracker_class(cls)


# --- the hub ---


def test_main_process_feeds_every_tracker_once() -> None:
    mine = Recorder("mine")
    hub = TrackerHub(["recorder", "in_folder", mine], "logs", is_main=True, extra=EXTRA)
    assert hub.trackers == []
    hub.init_trackers("run", {"lr": 0.1}, {"recorder": {"color": "red"}, "unknown": {"x": 1}})
    named, folder, same = _recorders(hub)
    hub.log({"loss": 1.0}, step=3, log_kwargs={"in_folder": {"commit": True}})
    hub.log({"loss": 0.5})
    hub.finish()
    logged = [("log", {"loss": 1.0}, 3, {}), ("log", {"loss": 0.5}, None, {}), ("finish",)]
    assert same is mine
    assert named.calls == [("init", "run", {"color": "red"}), ("start",), ("config", {"lr": 0.1}), *logged]
    assert mine.calls == [("init", "mine", {}), ("start",), ("config", {"lr": 0.1}), *logged]
    assert folder.calls[0] == ("init", "run", {"logging_dir": "logs"})
    assert folder.calls[3] == ("log", {"loss": 1.0}, 3, {"commit": True})


def test_other_processes_feed_none() -> None:
    mine = Recorder()
    hub = TrackerHub(mine, is_main=False)
    hub.init_trackers("run", {"lr": 0.1})
    hub.log({"loss": 1.0}, step=0)
    blank = hub.get_tracker("recorder")
    hub.finish()
    assert mine.calls == [("init", "", {})]
    assert type(blank) is Tracker


def test_config_and_arguments_may_be_left_out() -> None:
    hub = TrackerHub("recorder", is_main=True, extra=EXTRA)
    hub.init_trackers("run")
    assert _recorders(hub)[0].calls == [("init", "run", {}), ("start",)]
    hub.finish()
    hub.finish()
    assert hub.trackers == []


def test_get_tracker() -> None:
    hub = TrackerHub(["recorder", "in_folder"], "logs", is_main=True, extra=EXTRA)
    hub.init_trackers("run")
    assert hub.get_tracker("in_folder") is hub.trackers[1]
    assert hub.get_tracker("in_folder", unwrap=True) is _recorders(hub)[1].library
    with pytest.raises(ValueError, match="no tracker called 'wandb' runs. Running: recorder, in_folder"):
        hub.get_tracker("wandb")


def test_all_with_a_tracker_that_lacks_its_folder_fails_before_anything_starts() -> None:
    mine = Recorder()
    hub = TrackerHub(["all", mine], is_main=True)
    with pytest.raises(ConfigError, match="requires a `logging_dir`"):
        hub.init_trackers("run")
    assert mine.calls == [("init", "", {})]


def test_asked_for_all_and_none_can_run_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(base, "KNOWN", ())
    with caplog.at_level(logging.WARNING):
        assert TrackerHub("all", is_main=True).log_with == []
    assert ["log_with='all' was given" in text for text in caplog.messages] == [True]


class Failing(Recorder):
    name = "failing"

    def start(self) -> None:
        raise OSError("no server")

    def finish(self) -> None:
        raise OSError("disk full")


def test_a_failing_start_propagates_and_only_started_trackers_are_finished() -> None:
    before, failing, after = Recorder(), Failing(), Recorder()
    hub = TrackerHub([before, failing, after], is_main=True)
    with pytest.raises(OSError, match="no server"):
        hub.init_trackers("run")
    hub.finish()
    assert before.calls[1:] == [("start",), ("finish",)]
    assert after.calls[1:] == []


def test_a_failing_finish_propagates_after_the_others_are_closed() -> None:
    class FailsLate(Failing):
        def start(self) -> None:
            pass

    before, after = Recorder(), Recorder()
    hub = TrackerHub([before, FailsLate(), after], is_main=True)
    hub.init_trackers("run")
    with pytest.raises(OSError, match="disk full"):
        hub.finish()
    assert before.calls[-1] == after.calls[-1] == ("finish",)


def test_a_failing_log_propagates() -> None:
    class FailsLogging(Recorder):
        def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
            raise OSError("disk full")

    hub = TrackerHub(FailsLogging(), is_main=True)
    hub.init_trackers("run")
    with pytest.raises(OSError, match="disk full"):
        hub.log({"loss": 1.0})


def test_two_hubs_know_nothing_of_each_other() -> None:
    one, other = Recorder(), Recorder()
    hubs = TrackerHub(one, is_main=True), TrackerHub(other, is_main=True)
    for hub in hubs:
        hub.init_trackers("run")
    hubs[0].log({"a": 1})
    assert (len(one.calls), len(other.calls)) == (3, 2)
