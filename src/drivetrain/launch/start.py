"""The two ways of starting the ranks of this machine: forked from a parent that has imported torch, or each afresh."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from drivetrain.core.errors import LaunchError
from drivetrain.launch.base import Command, LaunchPlan, merged
from drivetrain.launch.streams import Relay

RANK_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")

IMPORTS = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
# Read when torch or the libraries below it are loaded: too late if the script sets them after a fork.
READ_AT_IMPORT = re.compile(r"environ.{0,40}[\"'](?:OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|TORCH|PYTORCH_|NUMEXPR_|LD_)")
# A script that names one of these trains, so it needs what torch loads for its optimizers and for data parallel.
TRAINS = re.compile(r"\b(?:optim|DistributedDataParallel|accelerate|drivetrain|transformers|trl|peft|lightning)\b")

TORCH = ["torch", "torch.distributed"]
TRAINING = ["torch._dynamo", "torch.distributed._functional_collectives", "torch.nn.parallel.distributed"]


class Event:
    """Something that happened to a rank: "started" (with pid), "failed" (with code) or "exit" (with code)."""

    __slots__ = ("kind", "rank", "pid", "code", "at")

    def __init__(self, kind: str, rank: int, *, pid: int = 0, code: int = 0, at: float = 0.0) -> None:
        self.kind = kind
        self.rank = rank
        self.pid = pid
        self.code = code
        self.at = at


class Starter(ABC):
    """Starts the ranks and tells what becomes of them. `report` is a descriptor to wait on."""

    def __init__(self) -> None:
        self.report, self._report_writer = os.pipe()
        os.set_blocking(self.report, False)
        self._pending = b""

    @abstractmethod
    def start(
        self, plan: LaunchPlan, command: Command, environ: Mapping[str, str], channels: list[list[Relay]]
    ) -> None:
        """Start all ranks; ``channels`` holds the output and error relay of each."""

    def events(self) -> list[Event]:
        """What has happened since the last call.

        Raises:
            LaunchError: the process that starts the ranks is gone.
        """
        try:
            self._pending += os.read(self.report, 65536)
        except BlockingIOError:
            pass
        *lines, self._pending = self._pending.split(b"\n")
        return [_event(json.loads(line)) for line in lines]

    def close(self) -> None:
        """Release what the starter holds."""
        os.close(self.report)
        os.close(self._report_writer)


class FreshStarter(Starter):
    """A new interpreter for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[int, subprocess.Popen] = {}
        self._started: list[Event] = []

    def start(
        self, plan: LaunchPlan, command: Command, environ: Mapping[str, str], channels: list[list[Relay]]
    ) -> None:
        """Start the interpreters, one after the other without waiting."""
        mode = "program" if command.no_python else "module" if command.module else "script"
        for number, (variables, (out, err)) in enumerate(zip(plan.ranks, channels, strict=True)):
            argv = [sys.executable, RANK_FILE, str(os.getpid()), str(self._report_writer)]
            self._running[number] = subprocess.Popen(
                [*argv, str(number), mode, command.script, *command.args],
                env=merged(environ, {**plan.env, **variables}),
                stdin=subprocess.DEVNULL,
                stdout=out.writer,
                stderr=err.writer,
                pass_fds=[self._report_writer],
                start_new_session=True,
            )
            self._started.append(Event("started", number, pid=self._running[number].pid))

    def events(self) -> list[Event]:
        """Ends of processes come from the system, failures from the ranks."""
        found = [*self._started, *super().events()]
        self._started = []
        for number, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[number]
                found.append(Event("exit", number, code=code, at=time.monotonic()))
        return found


class ForkStarter(Starter):
    """One process imports torch and forks the ranks."""

    def __init__(self, preload: Iterable[str]) -> None:
        super().__init__()
        self._preload = list(preload)
        self._parent: subprocess.Popen | None = None
        self._left = 0

    def start(
        self, plan: LaunchPlan, command: Command, environ: Mapping[str, str], channels: list[list[Relay]]
    ) -> None:
        """Start the parent and hand it the job."""
        writers = [[relay.writer for relay in pair] for pair in channels]
        job = {
            "preload": self._preload,
            "report": self._report_writer,
            "script": command.script,
            "args": command.args,
            "module": command.module,
            "ranks": [{"env": env, "fds": fds} for env, fds in zip(plan.ranks, writers, strict=True)],
        }
        self._left = len(plan.ranks)
        self._parent = subprocess.Popen(
            [sys.executable, RANK_FILE, str(os.getpid()), "-", "-", "fork", "-"],
            env=merged(environ, plan.env),
            stdin=subprocess.PIPE,
            pass_fds=[self._report_writer, *(fd for pair in writers for fd in pair)],
        )
        assert self._parent.stdin is not None
        try:
            self._parent.stdin.write((json.dumps(job) + "\n").encode())
            self._parent.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once; `events` will say so

    def events(self) -> list[Event]:
        """All events come from the parent and from the ranks."""
        assert self._parent is not None
        gone = self._parent.poll()  # before reading, so that nothing it wrote is missed
        found = super().events()
        self._left -= sum(event.kind == "exit" for event in found)
        if gone is not None and self._left > 0:
            raise LaunchError(
                f"the process that forks the ranks ended with code {gone} before they did. Use --start_method fresh "
                "to start each rank by itself."
            )
        return found

    def close(self) -> None:
        """Also end the parent, if it is still there."""
        super().close()
        if self._parent is not None and self._parent.poll() is None:
            self._parent.kill()
            self._parent.wait()


def choose(method: str, command: Command, device_kind: str) -> Starter:
    """The starter for ``--start_method``; "auto" forks where that is safe and of use.

    Raises:
        LaunchError: "fork" was asked for something that cannot be forked.
    """
    if method == "fork" and command.no_python:
        raise LaunchError("--start_method fork cannot run a --no_python program. Use --start_method fresh.")
    text = _text(command)
    if method == "fork" or (method == "auto" and _forks_well(command, device_kind, text)):
        return ForkStarter(preload(text))
    return FreshStarter()


def preload(text: str | None) -> list[str]:
    """What the parent imports for a script with this text; None where the text is not known."""
    if text is None:
        return [*TORCH, *TRAINING]
    own = ["drivetrain.accelerator"] if {"drivetrain", "accelerate"} & set(IMPORTS.findall(text)) else []
    return [*TORCH, *(TRAINING if TRAINS.search(text) else []), *own]


def _forks_well(command: Command, device_kind: str, text: str | None) -> bool:
    if command.no_python or not hasattr(os, "fork") or sys.platform == "darwin":
        return False
    if device_kind not in ("", "cuda"):  # other vendors' libraries may open the device when torch is imported
        return False
    if text is None:
        return True
    needs_torch = not set(IMPORTS.findall(text)) <= sys.stdlib_module_names
    return needs_torch and not READ_AT_IMPORT.search(text)


def _text(command: Command) -> str | None:
    if command.module or command.no_python:
        return None
    try:
        with open(command.script, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _event(line: dict) -> Event:
    return Event(line["event"], line["rank"], pid=line.get("pid", 0), code=line.get("code", 0), at=line.get("at", 0.0))
