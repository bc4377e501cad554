"""A process that imports torch once and forks the ranks. It never computes and starts no thread.

Reads one JSON line (the job) from its standard input, then writes JSON lines about the ranks to the job's report pipe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from drivetrain.config import environ
from drivetrain.launch import rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Ctrl-C reaches every process of the terminal; what becomes of the ranks is for the launcher to decide.
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve() -> None:
    """Import, fork, report each end, and end with the last rank."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    job = json.loads(sys.stdin.readline())
    job["self"] = os.getpid()
    preload(job["preload"])
    report = job["report"]
    running = {}
    for number in range(len(job["ranks"])):
        pid = fork()
        if pid == 0:
            become(job, number, unblocked)
        running[pid] = number
        _say(report, event="started", rank=number, pid=pid)
    _close_channels(job)
    while running:
        pid, status = os.wait()
        number = running.pop(pid, None)
        if number is not None:
            _say(report, event="exit", rank=number, code=os.waitstatus_to_exitcode(status), at=time.monotonic())


def preload(names: list[str]) -> None:
    """Import what the ranks are going to import. What fails is left to the ranks, which will tell why it fails."""
    import importlib

    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def fork() -> int:
    """`os.fork`, without the warning about threads: those of the array library stop at a fork by themselves."""
    import warnings

    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def become(job: dict, number: int, unblocked: Any) -> None:
    """Turn this fork into rank ``number``. Does not return."""
    rank.die_with_parent(job["self"])
    os.setsid()
    one = job["ranks"][number]
    out, err = one["fds"]
    os.dup2(out, 1)
    os.dup2(err, 2)
    _close_channels(job)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    environ.write(one["env"])
    forget_shared_randomness()
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    rank.run(job["script"], job["args"], module=job["module"], report=job["report"], rank=number)


def forget_shared_randomness() -> None:
    """Seed NumPy's global generator anew: fresh interpreters would not share its state. (`random` does so itself.)"""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _close_channels(job: dict) -> None:
    for fd in {fd for one in job["ranks"] for fd in one["fds"]}:
        os.close(fd)


def _say(report: int, **event: Any) -> None:
    os.write(report, (json.dumps(event) + "\n").encode())
