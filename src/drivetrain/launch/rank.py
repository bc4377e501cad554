"""Inside one rank: run the user's script as Python itself would, say when it fails, and end without hanging.

Also run as a file, in interpreters that need not find drivetrain; so it imports nothing else of ours at its top.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def die_with_parent(parent: int) -> None:
    """Be killed when the process with the id ``parent``, which started this one, ends. Linux only; elsewhere no-op."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # 1 is PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before the line above
        os._exit(128 + signal.SIGKILL)


def run(script: str, args: list[str], *, module: bool, report: int | str | None, rank: int) -> None:
    """Run the script in this process as ``__main__`` and end the process with its exit code. Does not return.

    Args:
        script: path, or name of a module.
        args: arguments of the script.
        module: whether ``script`` names a module.
        report: where to tell that the script fails: a file descriptor, which gets one JSON line; or a folder, which
            gets a JSON file with the traceback as well; or None.
        rank: number of this rank in that report.
    """
    code = 0
    try:
        _run_module(script, args) if module else _run_script(script, args)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001 - the interpreter's own last resort, which this replaces
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        error.__traceback__ = _own_part(error.__traceback__)
        _say_failed(report, rank, code, error)  # before the text, so that no other rank's reaction can look earlier
        sys.excepthook(type(error), error, error.__traceback__)
        leave(code)
    if code:
        _say_failed(report, rank, code, None)
    leave(code)


def leave(code: int, *, files: bool = True) -> None:
    """End as the interpreter does (threads, exit functions, flush) but without tearing modules down. Does not return.

    The teardown is where process groups wait for threads that wait for the interpreter.

    Args:
        code: exit code, unless an exit function raises.
        files: whether to write out open files; not where they were opened by the process that this one is a fork of.
    """
    import atexit
    import threading

    steps = [_flush, threading._shutdown, atexit._run_exitfuncs]  # type: ignore[attr-defined]
    for step in [*steps, *([_finish_files] if files else []), _flush]:
        try:
            step()
        except SystemExit as error:
            code = _exit_code(error)
        except BaseException as error:  # noqa: BLE001 - as the interpreter does: told, and no reason to stay
            sys.excepthook(type(error), error, error.__traceback__)
            code = code or 1
    os._exit(code)


def _run_script(path: str, args: list[str]) -> None:
    import types
    from importlib.machinery import SourceFileLoader

    sys.argv[:] = [path, *args]
    if os.path.isdir(path) or not os.path.isfile(path) or _is_archive(path):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    path = os.path.abspath(path)
    main = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __loader__=loader)
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str, args: list[str]) -> None:
    import runpy

    _first_on_path(os.getcwd())
    sys.argv[:] = ["-m", *args]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _is_archive(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _exit_code(error: SystemExit) -> int:
    """What the interpreter makes of ``sys.exit(x)``: nothing is 0, a number is itself, anything else is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this file and of `runpy`; None if there is nothing else in it."""
    starters = (__file__, "<frozen runpy>")
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in starters and not name.endswith("runpy.py"):
            return trace
        trace = trace.tb_next
    return None


def _say_failed(report: int | str | None, rank: int, code: int, error: BaseException | None) -> None:
    if report is None:
        return
    import json

    event: dict[str, object] = {"event": "failed", "rank": rank, "code": code, "at": time.monotonic()}
    try:
        if isinstance(report, int):
            os.write(report, (json.dumps(event) + "\n").encode())
            return
        import traceback

        event["text"] = "" if error is None else "".join(traceback.format_exception(error))
        path = os.path.join(report, f"{rank}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(event, file)
        os.rename(path + ".part", path)
    except OSError:
        pass  # the launcher is gone; this rank ends in any case


def _finish_files() -> None:
    """Write out what open files still hold, text first: the teardown that is left out would do it."""
    import gc
    import io

    plain = (
        io.RawIOBase,
        io.TextIOWrapper,
        io.BufferedWriter,
        io.BufferedRandom,
        io.BufferedReader,
        io.BytesIO,
        io.StringIO,
    )
    # By type, not isinstance: that would wake up lazy proxies.
    files = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase) and not one.closed]
    for one in files:
        if isinstance(one, io.TextIOWrapper):
            _tolerant(one.flush)
    for one in files:
        if not isinstance(one, plain):  # compressed files have a trailer to write
            _tolerant(one.close)
    for one in files:
        if isinstance(one, (io.BufferedWriter, io.BufferedRandom)):
            _tolerant(one.flush)


def _tolerant(step: Callable[[], object]) -> None:
    try:
        step()
    except (OSError, ValueError):
        pass  # a file whose descriptor is gone has nowhere to write to


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def main() -> None:
    """``python rank.py PARENT REPORT RANK MODE SCRIPT ARGS...``: the start of a fresh process.

    PARENT is a process id, or "-" for the one that has started this. REPORT is a descriptor, a folder, or "-" for none.
    RANK is a number, or "-" for the one in the environment. MODE is script, module, program, or fork: become the
    process that forks the ranks.
    """
    parent, report, rank, mode, script, *args = sys.argv[1:]
    del sys.path[0]  # the folder of this file, whose modules must not stand in for others of their names
    die_with_parent(os.getppid() if parent == "-" else int(parent))
    if mode == "program":
        os.execvp(script, [script, *args])
    if mode == "fork":
        _find_drivetrain()
        from drivetrain.launch.forkparent import serve

        serve()
        return
    where: int | str | None = None if report == "-" else int(report) if report.isdigit() else report
    if isinstance(where, int):
        os.set_inheritable(where, False)
    number = _rank_in_environment() if rank == "-" else int(rank)
    if isinstance(where, str):
        _forget_failure(where, number)
    run(script, args, module=mode == "module", report=where, rank=number)


def _forget_failure(folder: str, rank: int) -> None:
    """Remove what this rank reported before the agent restarted it."""
    try:
        os.unlink(os.path.join(folder, f"{rank}.json"))
    except FileNotFoundError:
        pass


def _rank_in_environment() -> int:
    _find_drivetrain()
    from drivetrain.config.environ import process_env

    return process_env().rank


def _find_drivetrain() -> None:
    """Import the drivetrain that this file belongs to, which need not be on the search path of the script."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, root)
    import drivetrain.config.environ  # noqa: F401

    del sys.path[0]


if __name__ == "__main__":
    main()
