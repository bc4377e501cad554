"""The process that imports torch once and forks the ranks of every job: the other half of `ranks.py`.

Runs as a program: `python rank_parent.py DESCRIPTOR`, a connected socket on which it says "ready", then takes one job
(a dict) after the other and answers each with one dict a rank. It never runs a tensor operation and starts no thread,
so that its children may do both.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import os
import pickle
import selectors
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

# torch, and what a loader, a DDP model or an optimizer would else import in every rank.
PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch._dynamo",
    "torch.distributed._functional_collectives",
)
STACKS = signal.SIGUSR2  # a rank that has run out of time writes the stacks of its threads on this signal
STACKS_TIME = 1.0  # seconds it has for that before it is killed
LINGER = 5.0  # seconds that a rank has to leave once all have returned
HEADER = 8  # bytes of the length before the message of a rank
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _import_once()
    gc.freeze()  # the children share the pages of all that exists by now
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(Job(job, connection).run())


def _import_once() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    try:
        getattr(importlib.import_module("drivetrain"), "Accelerator")  # noqa: B009  (loaded when first asked for)
    except Exception:  # noqa: BLE001  (a library that cannot be imported fails in the rank that uses it, with this text)
        traceback.print_exc()


class Job:
    """One call of one function in n ranks, from the forks to the last exit code."""

    def __init__(self, job: dict[str, Any], connection: Connection) -> None:
        self.job = job
        self.connection = connection
        self.pids: dict[int, int] = {}
        self.received: dict[int, bytearray] = {}
        self.exit_codes: dict[int, int] = {}
        self.killed: set[int] = set()
        self.deadline = time.monotonic() + job["timeout"]

    def run(self) -> list[dict[str, Any]]:
        release_read, release_write = os.pipe()
        pipes = {rank: self._fork(rank, release_read, release_write) for rank in range(self.job["n"])}
        os.close(release_read)
        try:
            self._collect(pipes)
            os.close(release_write)  # every rank that has returned waits for this before it leaves
            self._await_exits(set(pipes) - self.killed, LINGER)
        finally:
            for pipe in pipes.values():
                os.close(pipe)
            self._end_all()
        return [self._raw(rank) for rank in range(self.job["n"])]

    def _fork(self, rank: int, release_read: int, release_write: int) -> int:
        result_read, result_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(result_read)
            os.close(release_write)
            _be_rank(self.job, rank, result_write, release_read)
        os.close(result_write)
        self.pids[rank] = pid
        self.received[rank] = bytearray()
        return result_read

    def _collect(self, pipes: dict[int, int]) -> None:
        """Until each rank has sent its whole message or is dead, or the time is over.

        The end of the pipe says neither: loader workers of the rank inherit its other end and keep it open.
        """
        descriptors = {rank: os.pidfd_open(pid) for rank, pid in self.pids.items()}
        waiting = set(pipes)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self.connection, selectors.EVENT_READ, None)
                for rank in pipes:
                    selector.register(pipes[rank], selectors.EVENT_READ, rank)
                    selector.register(descriptors[rank], selectors.EVENT_READ, rank)
                while waiting:
                    events = selector.select(max(0.0, self.deadline - time.monotonic()))
                    if not events:
                        return self._out_of_time(waiting)
                    for key, _ in events:
                        rank = key.data
                        if rank is None:  # the test process is gone or has given up on this job
                            raise SystemExit(1)
                        died = key.fd == descriptors[rank]
                        if rank in waiting and self._rank_is_through(rank, pipes[rank], died):
                            waiting.discard(rank)
                            selector.unregister(pipes[rank])
                            selector.unregister(descriptors[rank])
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)

    def _rank_is_through(self, rank: int, pipe: int, died: bool) -> bool:
        """Take what the pipe holds; true when the message is complete or will never be."""
        received = self.received[rank]
        os.set_blocking(pipe, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(pipe, 1 << 16):
                received += chunk
        complete = len(received) > HEADER and len(received) == HEADER + int.from_bytes(received[:HEADER], "big")
        if not complete and not died:
            return False
        if not complete:
            received.clear()
        if not complete or received[HEADER : HEADER + 1] == b"E":
            self.deadline = min(self.deadline, time.monotonic() + self.job["grace"])
        return True

    def _out_of_time(self, ranks: set[int]) -> None:
        for rank in ranks:
            self.killed.add(rank)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], STACKS)
        self._await_exits(ranks, STACKS_TIME)

    def _await_exits(self, ranks: set[int], limit: float) -> None:
        end = time.monotonic() + limit
        for rank in ranks:
            descriptor = os.pidfd_open(self.pids[rank])
            try:
                with selectors.DefaultSelector() as selector:
                    selector.register(descriptor, selectors.EVENT_READ)
                    selector.select(max(0.0, end - time.monotonic()))
            finally:
                os.close(descriptor)

    def _end_all(self) -> None:
        """Kill and collect all that descends from here; as a subreaper this process is parent of every orphan too."""
        ranks = {pid: rank for rank, pid in self.pids.items()}
        while True:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            if pid in ranks:
                self.exit_codes[ranks[pid]] = os.waitstatus_to_exitcode(status)

    def _raw(self, rank: int) -> dict[str, Any]:
        output = Path(self.job["folder"], f"output-{rank}")
        return {
            "rank": rank,
            "exit_code": self.exit_codes[rank],
            "timed_out": rank in self.killed,
            "output": output.read_text(errors="replace") if output.exists() else "",
            "result": bytes(self.received[rank][HEADER + 1 :]),
        }


def _be_rank(job: dict[str, Any], rank: int, result_pipe: int, release_pipe: int) -> NoReturn:
    """The whole life of a rank: never returns to the loop of the parent."""
    code = 1
    try:
        _settle(job, rank)
        code = _call(job, result_pipe)
        if code == 0:
            os.read(release_pipe, 1)  # ends when all ranks have returned: a peer may need this one's store until then
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _settle(job: dict[str, Any], rank: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    output = os.open(Path(job["folder"], f"output-{rank}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    faulthandler.enable()
    faulthandler.register(STACKS, all_threads=True)
    os.environ.clear()
    os.environ.update(job["env"] | _rank_variables(job, rank))
    folder = Path(job["folder"], f"work-{rank}")
    folder.mkdir()
    os.chdir(folder)
    sys.path[:] = job["path"]


def _rank_variables(job: dict[str, Any], rank: int) -> dict[str, str]:
    """What torchrun sets; nothing for a single process. A name that the test gave itself is left to the test."""
    if job["n"] == 1:
        return {}
    size = str(job["n"])
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job["port"]),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    return {name: value for name, value in variables.items() if name not in job["env"]}


def _call(job: dict[str, Any], pipe: int) -> int:
    """Import the test file, call the function, send "V" and its value or "E" and the error; the exit code."""
    try:
        module = _load(job["module"], job["file"])
        result = {"value": getattr(module, job["function"])(*pickle.loads(job["args"]))}
        message = b"V" + pickle.dumps(result)
        code = 0
    except SystemExit as leave:
        # As the interpreter does it: None is success, a text is printed and counts as 1.
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        message = b"E" + pickle.dumps({"error": "SystemExit", "text": str(leave.code)})
    except BaseException as error:  # noqa: BLE001  (it is the test's to judge)
        traceback.print_exc()
        message = b"E" + pickle.dumps({"error": type(error).__name__, "text": str(error)})
        code = 1
    with os.fdopen(pipe, "wb") as file:
        file.write(len(message).to_bytes(HEADER, "big") + message)
    return code


def _load(name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # loader workers and pickle look classes of the test file up by this name
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
