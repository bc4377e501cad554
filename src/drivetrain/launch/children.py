"""Run a function in forks of this process and bring back what each returned, or how the first of them failed."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from drivetrain.config import environ
from drivetrain.core.errors import LaunchError
from drivetrain.launch.rank import die_with_parent, leave

AFTER_DEATH = 3.0
"""Seconds that the other children have after SIGTERM when one has failed."""
LOOK = 0.1
"""Seconds between looks at children that say nothing."""
HEADER = 8
"""Bytes of the length in front of a child's message."""


class Child:
    """One fork, and what is known of it."""

    def __init__(self, rank: int, pid: int, reader: int) -> None:
        self.rank, self.pid, self.reader = rank, pid, reader
        self.message = b""
        self.code: int | None = None
        self.ended_at = 0.0
        self.stopped_by_us = False

    def answer(self) -> dict[str, Any] | None:
        """The child's whole message, or None if it sent none."""
        length = int.from_bytes(self.message[:HEADER], "little")
        if len(self.message) < HEADER or len(self.message) < HEADER + length:
            return None
        return pickle.loads(self.message[HEADER : HEADER + length])

    def read(self) -> bool:
        """Take in what has arrived; False at the end of the pipe, or if nothing is there now."""
        try:
            data = os.read(self.reader, 1 << 20)
        except BlockingIOError:
            return False
        self.message += data
        return bool(data)

    def kill(self, number: int, *, whole_group: bool = False) -> None:
        """Send a signal to the child, or also to the processes it has started."""
        try:
            os.killpg(self.pid, number) if whole_group else os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended, or has not yet got a group of its own


def run_in_forks(
    function: Callable[..., Any], args: Sequence[Any], variables: Sequence[Mapping[str, str]]
) -> list[Any]:
    """Call ``function(*args)`` in one fork for each mapping in ``variables``; returns what they returned, in order.

    Each child has its mapping in its environment, one thread in torch (the threads of this process do not exist in it,
    and torch would wait for them), and is in a session of its own. Results travel pickled. When a child fails, the
    others get SIGTERM, and SIGKILL `AFTER_DEATH` seconds later. An interrupt of this call ends the children too.

    Raises:
        LaunchError: a child raised, died, or returned what cannot be pickled. The message ends with the traceback of
            the first that failed; its exception, if it can be pickled, is the cause.
    """
    children: list[Child] = []
    try:
        for rank, values in enumerate(variables):
            children.append(_fork(rank, values, function, args))
        _wait(children)
    finally:
        for child in children:
            if child.code is None:
                child.kill(signal.SIGKILL)
                child.kill(signal.SIGKILL, whole_group=True)
                os.waitpid(child.pid, 0)
            os.close(child.reader)
    return _results(children)


def _fork(rank: int, values: Mapping[str, str], function: Callable[..., Any], args: Sequence[Any]) -> Child:
    reader, writer = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = _quiet_fork()
    if pid == 0:
        os.close(reader)
        _become(rank, parent, writer, values, function, args)
    os.close(writer)
    os.set_blocking(reader, False)
    return Child(rank, pid, reader)


def _quiet_fork() -> int:
    """`os.fork` without the warning about threads, against which the children are prepared."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(
    rank: int, parent: int, writer: int, values: Mapping[str, str], function: Callable[..., Any], args: Sequence[Any]
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        die_with_parent(parent)
        _own_exit_functions()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        environ.write(values)
        _one_thread()
        try:
            message = _packed(rank, function(*args))
            code = 0
        except BaseException as error:  # noqa: BLE001 - it travels to the parent, which raises
            message = _failure(error)
        _send(writer, message)
    finally:
        leave(code, files=False)
    raise AssertionError("unreachable")


def _own_exit_functions() -> None:
    """Forget the exit functions of the launching process, but for the one that ends this process's own children."""
    import atexit

    atexit._clear()
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        atexit.register(processes._exit_function)


def _one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _packed(rank: int, result: Any) -> bytes:
    try:
        return pickle.dumps({"result": result})
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        raise LaunchError(
            f"rank {rank} returned a {type(result).__name__}, which cannot be sent to the launching process: {error}. "
            "Return plain data or tensors."
        ) from None


def _failure(error: BaseException) -> bytes:
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without the frame of this file
    text = "".join(traceback.format_exception(type(error), error, trace))
    found = {"name": type(error).__name__, "said": str(error), "text": text, "at": time.monotonic()}
    try:
        return pickle.dumps({**found, "error": error})
    except Exception:  # noqa: BLE001 - an exception class may fail to pickle in any way it likes; its text is kept
        return pickle.dumps(found)


def _send(writer: int, message: bytes) -> None:
    data = memoryview(len(message).to_bytes(HEADER, "little") + message)
    while data:
        data = data[os.write(writer, data) :]


def _wait(children: list[Child]) -> None:
    deadline: float | None = None
    while any(child.code is None for child in children):
        waiting = {child.reader: child for child in children if child.code is None}
        for fd in select.select(list(waiting), [], [], LOOK)[0]:
            if not waiting[fd].read():
                time.sleep(LOOK / 10)  # its end of the pipe is closed, and it is about to end
        for child in waiting.values():
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.code, child.ended_at = os.waitstatus_to_exitcode(status), time.monotonic()
                while child.read():
                    pass
        if deadline is None and any(child.code for child in children):
            deadline = time.monotonic() + AFTER_DEATH
            _stop(children, signal.SIGTERM)
        elif deadline is not None and time.monotonic() > deadline:
            _stop(children, signal.SIGKILL)


def _stop(children: list[Child], number: int) -> None:
    for child in children:
        if child.code is None:
            child.stopped_by_us = True
            child.kill(number, whole_group=number == signal.SIGKILL)
        elif child.code:
            child.kill(signal.SIGKILL, whole_group=True)  # what it started must not outlive it


def _results(children: list[Child]) -> list[Any]:
    answers = [child.answer() for child in children]
    failed = [
        (answer["at"] if answer is not None else child.ended_at, child.rank)
        for child, answer in zip(children, answers, strict=True)
        if (answer is not None and "text" in answer) or (child.code and not child.stopped_by_us)
    ]
    if not failed:
        return [answer["result"] for answer in answers if answer is not None]
    rank = min(failed)[1]
    answer, code = answers[rank], children[rank].code or 0
    if answer is None or "text" not in answer:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise LaunchError(f"rank {rank} {how}.")
    raise LaunchError(
        f"rank {rank} raised {answer['name']}: {answer['said']}\n\nIts traceback:\n{answer['text'].rstrip()}"
    ) from answer.get("error")
