"""Every tracker that is found by name keeps the rules of `Tracker`. A new file in `tracking/` is tested by existing."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path

import pytest

from drivetrain.core import registry
from drivetrain.tracking.base import Tracker
from ranks import run_ranks

NAMES = registry.names("tracking")


def _class(name: str) -> type[Tracker]:
    return registry.find("tracking", name, Tracker)


METHODS = ("start", "store_init_configuration", "log", "finish")


def test_the_built_in_trackers_are_found() -> None:
    assert {"jsonl", "tensorboard"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_class_is_complete(name: str) -> None:
    cls = _class(name)
    assert cls.name == name
    assert isinstance(cls.requires_logging_directory, bool)
    assert isinstance(vars(cls)["tracker"], property)
    assert cls.__doc__
    for method in METHODS:
        assert method in vars(cls), f"{method} is not the class's own"
        assert list(signature(getattr(cls, method)).parameters) == list(signature(getattr(Tracker, method)).parameters)


def _use(name: str, folder: str) -> list:
    """On one rank: a run by name, and what was on disk or in the process group before `start`."""
    import torch.distributed as dist

    from drivetrain.config.environ import process_env
    from drivetrain.tracking.base import TrackerHub

    is_main = process_env().rank == 0
    own = os.path.join(folder, "main" if is_main else "other")
    cls = _class(name)
    lone = cls("lone", own) if cls.requires_logging_directory else cls("lone")  # type: ignore[call-arg]
    before = [os.path.exists(own), dist.is_initialized()]
    hub = TrackerHub([name, lone], own, is_main=is_main)
    hub.init_trackers("run", {"lr": 0.1})
    hub.log({"loss": 0.5}, step=1)
    hub.finish()
    lone.log({"loss": 0.25}) if not is_main else None  # called past the hub: the tracker itself knows its rank
    return [*before, dist.is_initialized()]


@pytest.mark.parametrize("name", [one for one in NAMES if _class(one).available()])
def test_two_phases_and_one_writer(name: str, tmp_path: Path) -> None:
    assert run_ranks(_use, n=2, args=(name, str(tmp_path))) == [[False, False, False]] * 2
    cls = _class(name)
    if cls.requires_logging_directory:
        assert {path.name for path in (tmp_path / "main").iterdir()} == {"run", "lone"}
    assert not (tmp_path / "other").exists()
