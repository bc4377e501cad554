"""Before a collective that the user calls: do all ranks mean the same one, and do all come?

One header of fixed size is all-gathered on a CPU group. When ranks differ, or one stays away, every rank that is there
raises one error that says who does what, at which line.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import tempfile
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from drivetrain.core.errors import CollectiveError

REPORT_SECONDS = 2.0
"""How long a rank that gave up waits for the reports of the others that gave up."""
_STACK = "drivetrain-stack"
"""In the name of every file that holds a stack."""
_INSIDE = ("drivetrain", "accelerate", "torch", "contextlib")
"""Packages whose frames are not the user's."""
_FOLDERS = ('"<frozen ', str(Path(__file__).parent.parent) + os.sep, str(Path(torch.__file__).parent) + os.sep)


class Agreement:
    """The side group of one default process group."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.calls = 0
        self._headers = [torch.zeros(5, dtype=torch.int64) for _ in range(self.world_size)]
        self._mine = torch.zeros(5, dtype=torch.int64)
        self._whereabouts = Whereabouts(self.rank, self.world_size)

    def check(self, op: str, what: str, note: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """Compare ``(op, what)`` over the ranks. Returns every rank's ``note``, which may differ, by rank.

        Raises:
            CollectiveError: on every rank that is there, when they differ or one does not come in time.
        """
        self.calls += 1
        mine = self._mine
        own = (self.calls, zlib.crc32(op.encode()), zlib.crc32(what.encode()))
        mine.numpy()[:] = own + note
        try:
            dist.all_gather(self._headers, mine, group=self.group)
        except RuntimeError as error:
            raise self.explain(op, error, waited=f"{self.seconds:g} s") from None
        headers = [tuple(header.tolist()) for header in self._headers]
        if any(header[:3] != own for header in headers):
            self._disagree(op, what)
        return [header[3:] for header in headers]

    def wait(self, seconds: float) -> None:
        """Wait ``seconds`` for the other ranks from now on."""
        if seconds != self.seconds:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), self.group)
            self.seconds = seconds

    def close(self) -> None:
        """Let go of the group, which is about to end."""
        self.group = None
        self._whereabouts.close()

    def _disagree(self, op: str, what: str) -> None:
        said: list[Any] = [None] * self.world_size
        dist.all_gather_object(said, (op, what, user_line()), group=self.group)
        rows = [
            f"  rank {r}: {o}({w}) at {line}" if w else f"  rank {r}: {o} at {line}"
            for r, (o, w, line) in enumerate(said)
        ]
        differ = "call different collectives" if len({o for o, _, _ in said}) > 1 else "call it on different things"
        advice = (
            "Every rank has to make the same calls in the same order."
            if len({o for o, _, _ in said}) > 1
            else "Shapes, dtypes and structure must be equal on all ranks; pad_across_processes makes shapes equal, "
            "and gather_object takes anything."
        )
        raise CollectiveError(f"the ranks {differ}:\n" + "\n".join(rows) + f"\n{advice}")

    def explain(self, op: str, error: RuntimeError, waited: str = "in vain") -> RuntimeError:
        """Turn the failure of a collective into a report of who is missing and what line it is at."""
        text = str(error)
        if not any(
            word in text for word in ("imed out", "imeout", "onnection closed", "onnection reset", "eer closed")
        ):
            return error
        reports = self._whereabouts.of_missing(f"{op} #{self.calls}")
        if not reports:
            return CollectiveError(f"{op} failed on rank {self.rank} at {user_line()}: {text}")
        rows = "\n".join(f"  rank {rank}: {where}" for rank, where in sorted(reports.items()))
        return CollectiveError(
            f"{op} at {user_line()} waited {waited} for {len(reports)} of {self.world_size} ranks that did "
            f"not join:\n{rows}\nEvery rank has to make the same calls in the same order. A longer wait is set by "
            "collective_timeout=seconds."
        )


class Whereabouts:
    """Which Python line the other processes of the run are at, asked only when one of them is missed.

    Each process registers a signal at which the interpreter writes its own stack to a file (`faulthandler` does this in
    C, so a process that is stuck in a system call answers too). A peer on the same machine sends the signal and reads.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._file: IO[str] | None = None
        path = ""
        if hasattr(faulthandler, "register"):
            self._file, path = _stack_file()
            faulthandler.register(stack_signal(), file=self._file, all_threads=False, chain=False)
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._store.set(f"drivetrain/where/{rank}", f"{socket.gethostname()}\n{os.getpid()}\n{path}")

    def close(self) -> None:
        """Stop answering."""
        if self._file is not None:
            faulthandler.unregister(stack_signal())
            self._file.close()
            self._file = None
        self._store = None

    def of_missing(self, call: str) -> dict[int, str]:
        """Rank to description, for each rank that has not given up on ``call`` too; waits `REPORT_SECONDS`."""
        try:
            self._store.set(f"drivetrain/gave-up/{call}/{self.rank}", "1")
            deadline = time.monotonic() + REPORT_SECONDS
            missing = set(range(self.world_size)) - {self.rank}
            while missing and time.monotonic() < deadline:
                missing = {r for r in missing if not self._store.check([f"drivetrain/gave-up/{call}/{r}"])}
                time.sleep(0.05)
            return {rank: self._of(rank) for rank in missing}
        except (RuntimeError, ValueError) as error:  # the store went away with rank 0
            return {0: f"has ended, and the rendezvous store with it ({error})"}

    def _of(self, rank: int) -> str:
        key = f"drivetrain/where/{rank}"
        if not self._store.check([key]):
            return "has not started"
        host, pid, path = self._store.get(key).decode().split("\n")
        if host != socket.gethostname():
            return f"process {pid} on {host}; its line can be read on that machine only (py-spy dump --pid {pid})"
        return _ask(int(pid), path)


def _stack_file() -> tuple[IO[str], str]:
    """A file for the stack of this process, and where its peers find it.

    In memory where that can be had: nothing is left behind by a process that is killed.
    """
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create(_STACK), "w+")
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if os.path.exists(path):
            return file, path
        file.close()
    named = tempfile.NamedTemporaryFile(mode="w+", prefix=f"{_STACK}-", suffix=".txt")
    return named, named.name


def _ask(pid: int, path: str) -> str:
    try:
        stack = _stack_of(pid, path)
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        stack = None
    if stack is None:
        return f"process {pid} has ended"
    if not stack:
        return f"process {pid} does not answer"
    own = next((line for line in stack if not any(folder in line for folder in _FOLDERS)), stack[0])
    return f"{own.removeprefix('File ')} (process {pid})"


def _stack_of(pid: int, path: str) -> list[str] | None:
    """The lines a process writes when asked; none if it does not answer. None: ``pid`` is no process of the run."""
    if _STACK not in os.path.realpath(path):  # ended, and its number may be another process's, which must get no signal
        return None
    before = os.path.getsize(path)
    os.kill(pid, stack_signal())
    deadline = time.monotonic() + REPORT_SECONDS
    while os.path.getsize(path) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)  # faulthandler writes line by line
    with open(path) as file:
        file.seek(before)
        return [line.strip() for line in file if line.strip().startswith("File ")]


def stack_signal() -> int:
    """The signal at which a rank writes its stack: a real-time one where the system has those, so no script uses it."""
    return signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2


def user_line() -> str:
    """``"file", line n in function`` of the innermost frame that is neither ours nor torch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame = frame.f_back
    return f'"{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
