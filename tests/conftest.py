"""What every test gets: an untouched environment, fixed seeds, and a bound on its time."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from ranks import FOREIGN_NAMES, FOREIGN_PREFIXES

DEFAULT_LIMIT = 120.0  # seconds for each of set-up, call and tear-down of a test; `@pytest.mark.limit(s)` changes it


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment without rank and option variables, restored afterwards; seeds of random, NumPy and torch.

    Libraries that the test has not imported are not imported for it: most unit tests do without torch.
    """
    before = dict(os.environ)
    for name in before:
        if name in FOREIGN_NAMES or name.startswith(FOREIGN_PREFIXES):
            del os.environ[name]
    os.environ["HF_HOME"] = str(tmp_path_factory.getbasetemp() / "hf_home")
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_num_threads(1)
    folder = Path.cwd()
    yield
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item))


def _limited(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("limit")
    seconds = float(marker.args[0]) if marker else DEFAULT_LIMIT

    def late(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
