"""A tracker that needs nothing: one line of JSON for every call, in a file that survives a crash and a restart."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from drivetrain.core.errors import DrivetrainError, InputError
from drivetrain.runtime.log import Once, get_logger
from drivetrain.tracking.base import Tracker, on_main_process, plain

METRICS = "metrics.jsonl"
CONFIG = "config.json"

# JSON has no such numbers. They are written as these texts, and `read_jsonl` gives them back as floats.
NON_FINITE = ("NaN", "Infinity", "-Infinity")

logger = get_logger(__name__)


class BrokenRecord(DrivetrainError, ValueError):
    """A line in the middle of a metrics file is not a record."""


class JSONLinesTracker(Tracker):
    """Writes ``<logging_dir>/<run_name>/metrics.jsonl`` and, for the settings, ``config.json`` beside it.

    Each call of `log` adds one line ``{"step": ..., "time": ..., "values": {...}}``; time is in seconds since 1970.
    The line has left this process when `log` returns, so it outlives the process (a power cut may take the last ones).
    A run of the same name continues the file. Tensors and NumPy values become numbers or nested lists; numbers that
    are not finite become the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
    """

    name = "jsonl"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        self.run_name = run_name
        self.folder = Path(logging_dir, run_name)
        self._file: BinaryIO | None = None
        self._once = Once()

    @on_main_process
    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / METRICS
        _mend_end(path)
        self._file = open(path, "ab")

    @property
    def tracker(self) -> BinaryIO | None:
        """The open file; None before `start` and after `finish`."""
        return self._file

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write ``config.json``, whole or not at all. A value that JSON has no form for (a path, a dtype) is written as
        its text."""
        path = self.folder / CONFIG
        new = path.with_suffix(".json.new")
        new.write_text(json.dumps(_jsonable(plain(values)), indent=2, allow_nan=False, default=str) + "\n")
        os.replace(new, path)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Add one line. A value that JSON has no form for is written as its text, and one warning says so.

        Raises:
            InputError: further keywords were given; this tracker has none.
        """
        if kwargs:
            raise InputError(f"the tracker `jsonl` takes no further arguments, but got {', '.join(kwargs)}.")
        if self._file is None:
            self.start()  # logging after `finish` continues the file
        assert self._file is not None
        record = {"step": plain(step), "time": time.time(), "values": _jsonable(plain(values))}
        self._file.write(json.dumps(record, allow_nan=False, default=self._as_text).encode() + b"\n")
        self._file.flush()

    @on_main_process
    def finish(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _as_text(self, value: Any) -> str:
        kind = type(value).__name__
        self._once.warning(
            logger, "JSON has no form for a value of type %s; the run %r keeps its text.", kind, self.run_name, key=kind
        )
        return str(value)


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a metrics file, in the order they were logged: dictionaries with step, time and values.

    Args:
        path: the file, or the run's folder that holds ``metrics.jsonl``.

    A last line that was cut off (the writer died, or is writing right now) is left out. The texts ``"NaN"``,
    ``"Infinity"`` and ``"-Infinity"`` come back as floats.

    Raises:
        BrokenRecord: another line is not a record; names file and line.
    """
    path = Path(path)
    path = path / METRICS if path.is_dir() else path
    *lines, rest = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            raise BrokenRecord(
                f"{path}, line {number}, is not a record of the tracker `jsonl`: {line[:80]!r}. "
                "Remove the line to read the others."
            )
        records.append(record)
    last = _parse(rest)
    records += [last] if last is not None else []
    return [{**record, "values": _numbers(record["values"])} for record in records]


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record on this line, or None if there is no whole one."""
    try:
        record = json.loads(line)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return record if isinstance(record, dict) and "values" in record else None


def _mend_end(path: Path) -> None:
    """Make the file end with a whole line, so that the next one does not grow onto the rest of one that was cut off."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        rest = _after_last_newline(file)
        if not rest:
            return
        if _parse(rest) is not None:  # only the newline is missing
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
            return
        logger.warning("%s ends in a line that an earlier run did not finish: %r is removed.", path, rest[:80])
        file.truncate(file.seek(0, os.SEEK_END) - len(rest))


def _after_last_newline(file: BinaryIO, block: int = 65536) -> bytes:
    """What follows the last newline of ``file``; reads backwards, ``block`` bytes at a time."""
    rest = b""
    start = file.seek(0, os.SEEK_END)
    while start > 0 and b"\n" not in rest:
        size = min(block, start)
        start = file.seek(start - size)
        rest = file.read(size) + rest
    return rest[rest.rfind(b"\n") + 1 :]


def _jsonable(data: Any) -> Any:
    """``data`` (without tensors) with keys as text and without numbers that JSON lacks."""
    if isinstance(data, Mapping):
        return {str(key): _jsonable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_jsonable(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else ("Infinity" if data > 0 else "-Infinity")
    return data


def _numbers(data: Any) -> Any:
    """The other way round: texts that stand for numbers become numbers."""
    if isinstance(data, dict):
        return {key: _numbers(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_numbers(value) for value in data]
    return float(data) if data in NON_FINITE else data
