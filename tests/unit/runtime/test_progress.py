"""The progress bar: one a machine, unless told otherwise."""

from __future__ import annotations

import io
import sys

import pytest

from drivetrain.config import environ
from drivetrain.runtime.progress import tqdm


def _drawn(**kwargs) -> str:
    out = io.StringIO()
    assert list(tqdm(range(3), file=out, **kwargs)) == [0, 1, 2]
    return out.getvalue()


def test_draws_on_one_process() -> None:
    assert "3/3" in _drawn()


def test_draws_on_local_rank_zero_of_each_machine_only() -> None:
    with environ.patched(RANK="2", WORLD_SIZE="4", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2"):
        assert "3/3" in _drawn()
    with environ.patched(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2"):
        assert _drawn() == ""
        assert _drawn(disable=False) == ""
        assert "3/3" in _drawn(main_process_only=False)


def test_disable_of_the_caller_holds() -> None:
    assert _drawn(disable=True) == ""
    assert _drawn(disable=True, main_process_only=False) == ""


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_in_the_place_of_the_iterable_is_an_error(flag: bool) -> None:
    with pytest.raises(ValueError, match=rf"tqdm\(iterable, main_process_only={flag}\)"):
        tqdm(flag, range(3))


def test_without_tqdm_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm.auto", raising=False)
    with pytest.raises(ImportError, match=r"progress bar needs the package `tqdm`.*pip install '?tqdm"):
        tqdm(range(3))
