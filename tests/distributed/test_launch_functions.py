"""Functions launched from a running Python: results of all ranks come back, and so does the first failure."""

import os
import signal
import sys
import time

import pytest

from drivetrain.core.errors import ConfigError, LaunchError, UsageError
from drivetrain.launch.functions import debug_launcher, notebook_launcher
from ranks import run_script


def _place(*extra):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "FORK_LAUNCHED")
    return [os.environ[name] for name in names] + list(extra)


@pytest.mark.parametrize("launcher", [debug_launcher, notebook_launcher])
def test_each_ranks_result_comes_back(launcher):
    seen = "of this process"
    results = launcher(lambda word: _place(word, seen), ("x",), num_processes=2)
    assert results == [["0", "0", "2", "2", "1", "x", seen], ["1", "1", "2", "2", "1", "x", seen]]
    assert "RANK" not in os.environ


def test_large_results_come_back():
    assert [len(one) for one in debug_launcher(lambda: b"x" * 5_000_000)] == [5_000_000, 5_000_000]


def _accelerator():
    import torch

    from drivetrain import Accelerator

    accelerator = Accelerator()
    total = accelerator.reduce(torch.ones(1)).item()
    return accelerator.process_index, accelerator.local_process_index, accelerator.mixed_precision, total


def test_accelerators_meet_and_the_precision_reaches_them():
    assert notebook_launcher(_accelerator, num_processes=2, mixed_precision="bf16") == [
        (0, 0, "bf16", 2.0),
        (1, 1, "bf16", 2.0),
    ]
    assert debug_launcher(_accelerator) == [(0, 0, "no", 2.0), (1, 1, "no", 2.0)]


def test_after_threads_of_torch_the_children_still_compute():
    import torch

    torch.set_num_threads(2)
    weights = torch.randn(300, 300, requires_grad=True)

    def work():
        return (weights @ weights).relu().sum().backward()

    work()
    assert debug_launcher(work) == [None, None]


def test_one_process_is_this_one(capsys):
    assert notebook_launcher(lambda: os.getpid(), num_processes=1) == [os.getpid()]
    assert "one CPU" in capsys.readouterr().out
    assert notebook_launcher(_precision, num_processes=1, mixed_precision="bf16") == ["bf16"]
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ


def _precision():
    return os.environ["ACCELERATE_MIXED_PRECISION"]


def _fails(kind):
    if os.environ["RANK"] == "1":
        if kind == "raise":
            raise KeyError("my own error")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            os._exit(9)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("raise", "rank 1 raised KeyError: 'my own error'"),
        ("kill", "rank 1 was ended by SIGKILL"),
        ("exit", "rank 1 ended with exit code 9"),
    ],
)
def test_the_first_failure_ends_all_and_is_raised(kind, said):
    with pytest.raises(LaunchError) as caught:
        debug_launcher(_fails, (kind,))
    text = str(caught.value)
    assert text.startswith(said)
    if kind == "raise":
        assert isinstance(caught.value.__cause__, KeyError)
        assert 'in _fails\n    raise KeyError("my own error")' in text
        assert text.splitlines()[-1] == "KeyError: 'my own error'"


def test_what_cannot_be_sent_back_is_told():
    with pytest.raises(LaunchError, match="rank 0 returned a function, which cannot be sent"):
        debug_launcher(lambda: lambda: 1, num_processes=1)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no")


def test_an_error_that_cannot_be_pickled_still_has_its_text():
    def fails():
        raise Unpicklable("text")

    with pytest.raises(LaunchError, match="raised Unpicklable: text"):
        debug_launcher(fails, num_processes=1)


def test_a_failing_group_is_started_again(tmp_path):
    def fails_once():
        mark = tmp_path / "mark"
        if not mark.exists():
            if os.environ["RANK"] == "0":
                mark.touch()
                raise ValueError("first attempt")
            time.sleep(1000)
        return "second attempt"

    assert notebook_launcher(fails_once, num_processes=2, max_restarts=1) == ["second attempt"] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_processes": 2, "mixed_precision": "bf17"}, "mixed_precision is 'bf17'; choose one of"),
        ({}, "num_processes is not given"),
        ({"num_processes": 2, "node_rank": 1}, "node_rank=1 does not fit into num_nodes=1"),
        ({"num_processes": 2, "rdzv_backend": "c10d"}, "Use 'static'"),
        ({"num_processes": 2, "log_line_prefix_template": "x"}, "Leave it out"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises(ConfigError, match=said) as caught:
        notebook_launcher(print, **arguments)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match="at least 1 process"):
        debug_launcher(print, num_processes=0)


def test_inside_a_process_group_nothing_is_launched(monkeypatch):
    import torch

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="part of a process group already"):
        notebook_launcher(print, num_processes=2)


def test_an_early_start_of_cuda_is_named(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(LaunchError, match="CUDA is already initialised in this process"):
        notebook_launcher(print, num_processes=2)


PLAIN_SCRIPT = """
import atexit, torch
from drivetrain import notebook_launcher
atexit.register(lambda: print("exit of the launching process"))
unflushed = open("{folder}/file", "w")
unflushed.write("once")
offset = 10
def train(a):
    import drivetrain
    return a + offset + drivetrain.Accelerator().process_index
print(notebook_launcher(train, (1,), num_processes=2))
"""


def test_from_a_plain_script(tmp_path):
    """What belongs to the launching process, its exit functions and open files, happens once."""
    script = tmp_path / "s.py"
    script.write_text(PLAIN_SCRIPT.format(folder=tmp_path))
    result = run_script([sys.executable, script], timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["[11, 12]", "exit of the launching process"]
    assert result.stdout.count("exit of") == 1 and (tmp_path / "file").read_text() == "once"
    assert result.left_behind == ()
