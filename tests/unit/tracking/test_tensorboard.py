"""TensorBoard files, read back with TensorBoard's own reader."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drivetrain.config import environ
from drivetrain.tracking.base import TrackerHub
from drivetrain.tracking.tensorboard import TensorBoardTracker


def _read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def _points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in _read(folder).Scalars(tag)]


@pytest.fixture
def tracker(tmp_path: Path) -> TensorBoardTracker:
    one = TensorBoardTracker("proj", tmp_path)
    one.start()
    return one


def test_scalars_of_every_kind(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "int": 2,
        "float": 0.5,
        "bool": True,
        "tensor": torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True),
        "numpy": np.float32(1.5),
    }
    tracker.log(kinds, step=0)
    tracker.log({"float": 0.75}, step=7)
    tracker.finish()
    assert _points(tmp_path / "proj", "float") == [(0, 0.5), (7, 0.75)]
    assert [_points(tmp_path / "proj", tag)[0][1] for tag in kinds] == [2.0, 0.5, 1.0, 0.25, 1.5]


def test_is_on_disk_when_log_returns(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.log({"loss": 0.5}, step=1)
    assert _points(tmp_path / "proj", "loss") == [(1, 0.5)]
    tracker.finish()


def test_text(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.log({"note": "warm-up over"}, step=4)
    tracker.finish()
    (event,) = _read(tmp_path / "proj").Tensors("note/text_summary")
    assert (event.step, event.tensor_proto.string_val) == (4, [b"warm-up over"])


def test_a_dictionary_is_a_group_of_scalars(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.log({"loss": {"train": torch.tensor(0.5), "test": 0.75}}, step=2)
    tracker.finish()
    assert _points(tmp_path / "proj" / "loss_train", "loss") == [(2, 0.5)]
    assert _points(tmp_path / "proj" / "loss_test", "loss") == [(2, 0.75)]


def test_what_it_has_no_place_for_is_left_out_and_said_once(
    tracker: TensorBoardTracker, tmp_path: Path, caplog
) -> None:
    with caplog.at_level(logging.WARNING):
        for step in range(2):
            tracker.log({"row": torch.arange(3), "none": None, "kept": 1.0}, step=step)
    tracker.finish()
    assert caplog.messages == [
        "[RANK 0] TensorBoard shows numbers, text and dictionaries of numbers: 'row' is a list and is left out.",
        "[RANK 0] TensorBoard shows numbers, text and dictionaries of numbers: 'none' is a NoneType and is left out.",
    ]
    assert _read(tmp_path / "proj").Tags()["scalars"] == ["kept"]


def test_images(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    tracker.log_images({"digits": torch.rand(2, 1, 8, 6)}, step=3)
    tracker.log_images({"rows": np.zeros((1, 4, 5, 3), dtype=np.uint8)}, step=4, dataformats="NHWC")
    tracker.finish()
    events = _read(tmp_path / "proj")
    found = {tag: [(i.step, i.height, i.width) for i in events.Images(tag)] for tag in events.Tags()["images"]}
    assert found == {"digits": [(3, 8, 12)], "rows": [(4, 4, 5)]}


def test_settings_are_kept_whole(tracker: TensorBoardTracker, tmp_path: Path) -> None:
    config = {"lr": 0.1, "steps": 3, "name": "x", "fast": True, "betas": [0.9, 0.999], "none": None, "deep": {"a": 1}}
    config["tensor"] = torch.tensor(2.0)
    tracker.store_init_configuration(config)
    tracker.finish()
    (file,) = (tmp_path / "proj").glob("*/hparams.yml")
    assert yaml.safe_load(file.read_text()) == {**config, "tensor": 2.0}
    (folder,) = {path.parent for path in (tmp_path / "proj").glob("*/events*")}
    assert float(folder.name) > 1e9 and float(file.parent.name) >= float(folder.name)
    content = _read(folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for key in config:
        assert key.encode() in content
    assert isinstance(config["tensor"], torch.Tensor)


def test_settings_that_yaml_cannot_hold_are_an_error(tracker: TensorBoardTracker, caplog) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(TypeError):
        tracker.store_init_configuration({"generator": (n for n in range(3))})
    tracker.finish()
    assert "settings of the run 'proj' cannot be written as YAML" in caplog.text


def test_the_writer_is_the_tracker_and_takes_arguments(tmp_path: Path) -> None:
    hub = TrackerHub("tensorboard", tmp_path, is_main=True)
    hub.init_trackers("proj", init_kwargs={"tensorboard": {"filename_suffix": ".mine"}})
    writer = hub.get_tracker("tensorboard", unwrap=True)
    writer.add_scalar("own", 3.0, 1)
    hub.finish()
    assert [path.suffix for path in (tmp_path / "proj").iterdir()] == [".mine"]
    assert _points(tmp_path / "proj", "own") == [(1, 3.0)]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with environ.patched(RANK="1", WORLD_SIZE="2"):
        one = TensorBoardTracker("proj", tmp_path)
        one.start()
        one.store_init_configuration({"lr": 1})
        one.log({"loss": 1.0})
        one.log_images({})
        one.finish()
    assert list(tmp_path.iterdir()) == []
