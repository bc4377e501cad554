"""The logger that knows its rank: who speaks, what is said, and what it leaves alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from drivetrain.config import environ
from drivetrain.core.errors import ConfigError
from drivetrain.runtime.log import MultiProcessAdapter, Once, get_logger, process_rank
from ranks import run_ranks

NAME = "drivetrain.tests.log"


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Everything that the logger NAME emits, from level DEBUG on."""
    heard: list[logging.LogRecord] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record)

    handler = Collect()
    logger = logging.getLogger(NAME)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield heard
    logger.removeHandler(handler)
    logger.setLevel(before)


def _texts(records: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in records]


def test_speaks_before_anything_exists(records: list[logging.LogRecord]) -> None:
    get_logger(NAME).info("%d of %s", 3, "four")
    assert _texts(records) == ["[RANK 0] 3 of four"]


@pytest.mark.parametrize("rank, said", [("0", ["[RANK 0] hello"]), ("1", [])])
def test_only_the_main_process_speaks(records: list[logging.LogRecord], rank: str, said: list[str]) -> None:
    with environ.patched(RANK=rank, WORLD_SIZE="2", LOCAL_RANK="0"):
        get_logger(NAME).info("hello")
    assert _texts(records) == said


def test_every_rank_speaks_when_told_so(records: list[logging.LogRecord]) -> None:
    with environ.patched(RANK="1", WORLD_SIZE="2"):
        get_logger(NAME).info("hello", main_process_only=False)
    assert _texts(records) == ["[RANK 1] hello"]


def test_in_order_without_a_process_group_speaks_at_once(records: list[logging.LogRecord]) -> None:
    with environ.patched(RANK="1", WORLD_SIZE="2"):
        get_logger(NAME).warning("hello", in_order=True)
    assert _texts(records) == ["[RANK 1] hello"]


def test_nothing_below_the_level(records: list[logging.LogRecord]) -> None:
    get_logger(NAME, "error").warning("hello")
    assert records == []


def test_reports_the_line_of_the_caller(records: list[logging.LogRecord]) -> None:
    log = get_logger(NAME)
    log.info("a")
    log.log(logging.INFO, "b")
    log.warning_once("c")
    Once().warning(log, "d")

    def inside() -> None:
        log.info("e", stacklevel=3)

    inside()
    own = test_reports_the_line_of_the_caller
    first = own.__code__.co_firstlineno
    assert [record.lineno - first for record in records] == [2, 3, 4, 5, 10]
    assert {record.funcName for record in records} == {own.__name__}


def test_extra_of_the_caller_is_kept(records: list[logging.LogRecord]) -> None:
    MultiProcessAdapter(logging.getLogger(NAME), {"a": 1}).info("hello", extra={"b": 2})
    assert (records[0].a, records[0].b) == (1, 2)  # type: ignore[attr-defined]


def test_exception_carries_its_traceback(records: list[logging.LogRecord]) -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        get_logger(NAME).exception("it failed")
    assert _texts(records) == ["[RANK 0] it failed"]
    assert records[0].exc_info is not None and records[0].exc_info[0] is ValueError


def test_the_root_logger_is_left_alone() -> None:
    root, named = logging.getLogger(), logging.getLogger("drivetrain.tests.level")
    before = root.level
    get_logger(named.name, "debug")
    assert (root.level, named.level) == (before, logging.DEBUG)


def test_level_from_the_environment_and_the_argument_over_it() -> None:
    with environ.patched(DRIVETRAIN_LOG_LEVEL="error"):
        assert get_logger("drivetrain.tests.env").logger.level == logging.ERROR
        assert get_logger("drivetrain.tests.env", "INFO").logger.level == logging.INFO
        assert get_logger("drivetrain.tests.env", logging.DEBUG).logger.level == logging.DEBUG


def test_no_level_asked_for_leaves_the_named_logger_alone() -> None:
    logging.getLogger("drivetrain.tests.kept").setLevel(33)
    assert get_logger("drivetrain.tests.kept").logger.level == 33


def test_unknown_level_names_its_source() -> None:
    with pytest.raises(ConfigError, match=r"log_level='loud' is not a log level\. Use DEBUG, INFO"):
        get_logger(NAME, "loud")
    with environ.patched(DRIVETRAIN_LOG_LEVEL="loud"), pytest.raises(ConfigError, match="DRIVETRAIN_LOG_LEVEL='loud'"):
        get_logger(NAME)


def test_warning_once_says_each_distinct_thing_once(records: list[logging.LogRecord]) -> None:
    log = get_logger(NAME)
    for _ in range(2):
        log.warning_once("slow")
        log.warning_once("slow %s", [1])  # arguments need not be hashable
        log.warning_once("slow %s", [2])
    get_logger(NAME).warning_once("slow")  # another adapter has said nothing yet
    assert _texts(records) == ["[RANK 0] slow", "[RANK 0] slow [1]", "[RANK 0] slow [2]", "[RANK 0] slow"]


def test_warning_once_below_the_level_is_not_used_up(records: list[logging.LogRecord]) -> None:
    log = get_logger(NAME, "ERROR")
    log.warning_once("slow")
    log.setLevel(logging.WARNING)
    log.warning_once("slow")
    assert _texts(records) == ["[RANK 0] slow"]


def test_once_belongs_to_its_owner(records: list[logging.LogRecord]) -> None:
    log, one, other = get_logger(NAME), Once(), Once()
    one.warning(log, "short %d", 1)
    one.warning(log, "short %d", 1)
    one.warning(log, "short %d", 2)
    one.warning(log, "x is %d", 1, key="x")
    one.warning(log, "x is %d", 2, key="x")
    other.warning(log, "short %d", 1)
    assert [text.removeprefix("[RANK 0] ") for text in _texts(records)] == ["short 1", "short 2", "x is 1", "short 1"]
    assert (one.first("x"), one.first("y"), one.first("y")) == (False, True, False)


def test_importing_the_logger_does_not_import_torch() -> None:
    code = "import sys; from drivetrain.runtime.log import get_logger; get_logger('x').info('y')"
    code += "; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "False"


def _in_order(path: str) -> list[str]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    logger = logging.getLogger(NAME)
    handler = logging.FileHandler(path)
    logger.addHandler(handler)
    log = get_logger(NAME, "INFO")
    for number in range(5):
        log.info("line %d", number, in_order=True)
    log.info("main", main_process_only=True)
    log.info("all", main_process_only=False)
    handler.close()
    dist.barrier()
    with open(path) as file:
        return file.read().splitlines()


def test_in_order_takes_turns(tmp_path) -> None:
    one, other = run_ranks(_in_order, n=2, args=(str(tmp_path / "log"),))
    assert one == other
    assert one[:10] == [f"[RANK {rank}] line {number}" for number in range(5) for rank in (0, 1)]
    assert sorted(one[10:]) == ["[RANK 0] all", "[RANK 0] main", "[RANK 1] all"]


def _group_knows(store: str) -> list[int]:
    import torch.distributed as dist

    rank = environ.process_env().rank
    with environ.patched(RANK=None, WORLD_SIZE=None, LOCAL_RANK=None, LOCAL_WORLD_SIZE=None):
        before = process_rank()
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        return [before, process_rank()]


def test_the_process_group_knows_better_than_the_environment(tmp_path) -> None:
    assert run_ranks(_group_knows, n=2, args=(str(tmp_path / "store"),)) == [[0, 0], [0, 1]]
