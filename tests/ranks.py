"""Run a function of a test file, or a command line, in real processes that always end.

    from ranks import run_ranks, rank_outcomes, run_script

    def _sum(start):                                    # module level, so that a rank can find it by name
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.tensor([start + dist.get_rank()])
        dist.all_reduce(x)
        return x.item()

    def test_sum():
        assert run_ranks(_sum, n=2, args=(10,)) == [21, 21]

How a rank lives: it is forked from one parent that has imported torch and drivetrain and has run no tensor operation
(`rank_parent.py`), leads a session of its own, has torchrun's variables, gloo on the loopback, one thread, an empty
scratch folder as working directory and nothing else in its environment than what `clean_env` leaves and `env` adds.
With n=1 no rank variable is set: a plain single process, as `python script.py` would be.

What the function returns comes back pickled by value; return plain Python (numbers, strings, lists, `tensor.tolist()`).
A rank that has returned stays until all have, then leaves by `os._exit`, so exit handlers and destructors of the
library are not tested this way: use `run_script` for them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parent
SHOWN = 6000  # characters of a rank's output that a failure shows
TOKEN = "RANKS_TOKEN"  # environment variable by which the processes of one command line are known
PARENT_START = 180.0  # seconds for the import-once parent to import torch on a busy machine
FOREIGN_PREFIXES = ("ACCELERATE_", "DRIVETRAIN_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "TORCHELASTIC_")
FOREIGN_NAMES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
    "MASTER_ADDR MASTER_PORT HF_HOME PYTHONSTARTUP PYTHONWARNINGS".split()
)


class RanksFailed(AssertionError):
    """A rank raised, died or ran out of time. `outcomes` has one `Outcome` a rank."""

    def __init__(self, message: str, outcomes: list[Outcome]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    `value` is what the function returned; `error` and `text` are the type name and message of what it raised (None if
    it did not raise); `exit_code` is negative for a signal; `timed_out` says that it was killed by us.
    """

    rank: int
    exit_code: int
    timed_out: bool
    output: str
    value: Any = None
    error: str | None = None
    text: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and self.exit_code == 0


@dataclass(frozen=True)
class ScriptResult:
    """How a command line ended. `left_behind` are command lines of processes that it started and that outlived it."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    left_behind: tuple[str, ...]

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


# ---------------------------------------------------------------------------------------------------------------------
# environment
# ---------------------------------------------------------------------------------------------------------------------


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would change a run, this interpreter's commands first on PATH.

    `HF_HOME` and `TORCH_EXTENSIONS_DIR` point into a scratch folder, so no file of the developer's counts.
    """
    env = {k: v for k, v in os.environ.items() if k not in FOREIGN_NAMES and not k.startswith(FOREIGN_PREFIXES)}
    env.update(
        PATH=os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_OFFLINE="1",
        HF_HOME=str(_scratch() / "hf_home"),
        TORCH_EXTENSIONS_DIR=str(_scratch() / "torch_extensions"),
    )
    env.update(extra or {})
    return env


def free_port() -> int:
    """A TCP port of the loopback on which nothing listens, outside the kernel's range for outgoing connections."""
    start = 15000 + (os.getpid() * 131 + time.monotonic_ns() // 1000) % 15000
    for port in [*range(start, 30000), *range(15000, start)]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 15000 and 30000")


def _scratch() -> Path:
    return _parent.scratch


# ---------------------------------------------------------------------------------------------------------------------
# functions in ranks
# ---------------------------------------------------------------------------------------------------------------------


def run_ranks(
    function: Callable[..., Any],
    n: int = 2,
    timeout: float = 60,
    args: Sequence[Any] = (),
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `function(*args)` in `n` ranks and return what each returned, in rank order.

    Raises `RanksFailed`, which shows the output of every rank, when one raises, dies, or when `timeout` seconds pass.
    """
    outcomes = rank_outcomes(function, n, timeout, args, env)
    if not all(one.ok for one in outcomes):
        raise RanksFailed(_report(function.__qualname__, timeout, outcomes), outcomes)
    return [one.value for one in outcomes]


def rank_outcomes(
    function: Callable[..., Any],
    n: int = 2,
    timeout: float = 60,
    args: Sequence[Any] = (),
    env: Mapping[str, str] | None = None,
    grace: float = 20,
) -> list[Outcome]:
    """The same for ranks that are meant to fail: never raises for what they do, tells how each ended.

    When a rank has raised or died the others have `grace` seconds more; then they are killed and `timed_out` is set.
    """
    if "<locals>" in function.__qualname__ or "<lambda>" in function.__qualname__:
        raise TypeError(f"{function.__qualname__} must be a function at module level: a rank finds it by its name")
    job = {
        "file": sys.modules[function.__module__].__file__,
        "module": function.__module__,
        "function": function.__qualname__,
        "args": pickle.dumps(tuple(args)),
        "n": n,
        "port": free_port(),
        "timeout": float(timeout),
        "grace": float(grace),
        "env": clean_env(env),
        "path": list(sys.path),
        "folder": tempfile.mkdtemp(prefix="job-", dir=_scratch()),
    }
    try:
        return [_outcome(raw) for raw in _parent.run(job)]
    finally:
        shutil.rmtree(job["folder"], ignore_errors=True)


def _outcome(raw: dict[str, Any]) -> Outcome:
    result = pickle.loads(raw.pop("result")) if raw.get("result") else {}
    raw.pop("result", None)
    return Outcome(**raw, **result)


def _report(name: str, timeout: float, outcomes: list[Outcome]) -> str:
    lines = [f"{name} failed in rank {', '.join(str(one.rank) for one in outcomes if not one.ok)}"]
    for one in outcomes:
        if one.timed_out:
            end = f"killed: no end within its time (timeout={timeout:g} s)"
        elif one.error is not None:
            end = f"{one.error}: {one.text}"
        elif one.exit_code == 0 or one.ok:
            end = "returned"
        else:
            end = f"ended with {one.exit_code} before it returned"
        lines += [f"----- rank {one.rank}: {end}", one.output[-SHOWN:].rstrip()]
    return "\n".join(lines)


class _Parent:
    """The import-once process of this test process: started at first use, replaced if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._folder: Path | None = None

    @property
    def scratch(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="drivetrain-tests-"))
        return self._folder

    def run(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        connection = self._ready()
        try:
            connection.send(job)
            # The parent keeps the job's bounds; this wait only covers a parent that is itself stuck.
            if not connection.poll(job["timeout"] + 60):
                raise RuntimeError("the import-once parent of the ranks gave no answer and was killed")
            return connection.recv()
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError("the import-once parent of the ranks died, see the captured output") from error
        except BaseException:
            self._stop()  # also for the time limit of a test: an answer that comes later must not meet the next job
            raise

    def _ready(self) -> Connection:
        if self._process is not None and self._process.poll() is None and self._connection is not None:
            return self._connection
        self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(TESTS / "rank_parent.py"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=clean_env(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        if not self._connection.poll(PARENT_START) or self._connection.recv() != "ready":
            self._stop()
            raise RuntimeError(f"the import-once parent of the ranks was not ready within {PARENT_START:g} s")
        return self._connection

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            if self._process.poll() is None:
                self._process.kill()  # its ranks have asked the kernel to die with it
                self._process.wait()
        self._process = self._connection = None

    def close(self) -> None:
        self._stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


_parent = _Parent()
atexit.register(_parent.close)


# ---------------------------------------------------------------------------------------------------------------------
# command lines
# ---------------------------------------------------------------------------------------------------------------------


def run_script(
    argv: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    cwd: str | Path | None = None,
    stdin: str | None = None,
) -> ScriptResult:
    """Run a command line in a clean environment, in a session of its own, and wait for it.

    `python`, `torchrun`, `drivetrain`, ... are this interpreter's. Whatever it leaves running is killed and listed.
    Raises `RanksFailed` with the output so far when it has not ended after `timeout` seconds.
    """
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory(dir=_scratch()) as folder:
        out, err, given = (Path(folder) / name for name in ("stdout", "stderr", "stdin"))
        given.write_text(stdin or "")
        start = time.monotonic()
        # Files instead of pipes: a grandchild that keeps a pipe open would make the wait for the end of file endless.
        with out.open("wb") as out_file, err.open("wb") as err_file, given.open("rb") as in_file:
            process = subprocess.Popen(
                [str(part) for part in argv],
                stdin=in_file,
                stdout=out_file,
                stderr=err_file,
                env=clean_env({"PYTHONFAULTHANDLER": "1", **(env or {}), TOKEN: token}),
                cwd=cwd,
                start_new_session=True,
            )
        try:
            in_time = _await_end(process.pid, timeout)
            seconds = time.monotonic() - start
            if not in_time:
                _signal_all(token, signal.SIGABRT)  # Python processes write their stacks
                _await_end(process.pid, 1.0)
        finally:
            left = _end_all(token, process.pid)
            process.wait()
        stdout, stderr = (one.read_text(errors="replace") for one in (out, err))
    if not in_time:
        text = f"{' '.join(map(str, argv))}: no end after {timeout:g} s\n{stdout[-SHOWN:]}\n{stderr[-SHOWN:]}"
        raise RanksFailed(text, [])
    return ScriptResult(process.returncode, stdout, stderr, seconds, tuple(left))


def _await_end(pid: int, timeout: float) -> bool:
    """Wait until the child has ended, without collecting it: its process id cannot be given away until it is."""
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], timeout)
        return bool(ended)
    finally:
        os.close(descriptor)


def _signal_all(token: str, number: int) -> dict[int, str]:
    """Send a signal to every process that inherited the token, whatever its parent and session; their command lines."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if process.environ().get(TOKEN) == token:
                found[process.pid] = " ".join(process.cmdline())
                os.kill(process.pid, number)
    return found


def _end_all(token: str, leader: int) -> list[str]:
    """Kill until nothing is left that could start another; command lines of those that were not the leader."""
    left: dict[int, str] = {}
    while found := _signal_all(token, signal.SIGKILL):
        left |= {pid: line for pid, line in found.items() if pid not in left}
    return [line for pid, line in left.items() if pid != leader]
