"""The tool that all multi-process tests stand on: it must return what ranks return, and end whatever they do."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ranks import RanksFailed, free_port, rank_outcomes, run_ranks, run_script


def _who(*args):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "SECRET", "ACCELERATE_USE_CPU")
    return [list(args), {name: os.environ.get(name) for name in names}]


def _all_reduce():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.tensor([1.0 + dist.get_rank()], dtype=torch.float64)
    dist.all_reduce(x)
    return x.item()


def _with_workers(path):
    import torch

    loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2, num_workers=1, persistent_workers=True)
    values = [batch.tolist() for batch in loader]
    workers = [child.pid for child in psutil.Process().children(recursive=True)]
    return values, workers


def _fails_on_one():
    print("a word before the end")
    if os.environ["RANK"] == "1":
        raise ValueError("bad rank")
    return "fine"


def _never_ends():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(f"child={child.pid}", flush=True)
    time.sleep(600)


def _killed_on_zero():
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def _leaves_with(code):
    sys.exit(code)


def test_values_come_back_in_rank_order_with_torchruns_variables(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    (args0, env0), (args1, env1) = run_ranks(_who, n=2, args=(1, "a"), env={"SECRET": "s"})
    assert args0 == args1 == [1, "a"]
    assert env0 == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "SECRET": "s",
        "ACCELERATE_USE_CPU": None,
    }
    assert env1["RANK"] == env1["LOCAL_RANK"] == "1"


def test_one_process_has_no_rank_variables():
    ((_, env),) = run_ranks(_who, n=1)
    assert env["RANK"] is None and env["WORLD_SIZE"] is None


def test_ranks_meet():
    assert run_ranks(_all_reduce, n=2) == [3.0, 3.0]


def test_loader_workers_do_not_hold_up_the_end_and_do_not_survive():
    start = time.monotonic()
    ((values, workers),) = run_ranks(_with_workers, n=1, args=("x",), timeout=60)
    assert values == [[0, 1], [2, 3], [4, 5]]
    assert workers and not any(psutil.pid_exists(pid) for pid in workers)
    assert time.monotonic() - start < 50


def test_a_rank_that_raises_is_shown():
    with pytest.raises(RanksFailed) as failure:
        run_ranks(_fails_on_one, n=2, timeout=30)
    text = str(failure.value)
    assert "failed in rank 1" in text and "ValueError: bad rank" in text and "a word before the end" in text
    zero, one = failure.value.outcomes
    assert (zero.ok, zero.value) == (True, "fine")
    assert (one.error, one.text, one.exit_code, one.timed_out) == ("ValueError", "bad rank", 1, False)


def test_ranks_that_never_end_are_killed_with_their_children_and_show_their_stacks():
    (outcome,) = rank_outcomes(_never_ends, n=1, timeout=5)
    assert outcome.timed_out and not outcome.ok
    assert "_never_ends" in outcome.output  # the stack
    child = int(outcome.output.split("child=")[1].split()[0])
    assert not psutil.pid_exists(child)


def test_the_others_end_soon_after_a_death():
    start = time.monotonic()
    zero, one = rank_outcomes(_killed_on_zero, n=2, timeout=60, grace=1)
    assert (zero.exit_code, zero.timed_out) == (-signal.SIGKILL, False)
    assert one.timed_out
    assert time.monotonic() - start < 50


@pytest.mark.parametrize(("code", "status"), [(3, 3), (None, 0), ("why", 1)])
def test_exit_codes(code, status):
    (outcome,) = rank_outcomes(_leaves_with, n=1, args=(code,))
    assert (outcome.exit_code, outcome.error) == (status, "SystemExit")


def test_a_local_function_is_refused():
    with pytest.raises(TypeError, match="module level"):
        run_ranks(lambda: 1)


def test_script_output_and_code(tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        "import sys, os\nprint(input(), os.environ.get('RANK'))\nprint('e', file=sys.stderr)\nsys.exit(7)"
    )
    result = run_script(["python", script], env={"X": "1"}, stdin="hello\n", timeout=30)
    assert (result.returncode, result.stdout, result.stderr, result.left_behind) == (7, "hello None\n", "e\n", ())


def test_script_leftovers_are_named_and_killed(tmp_path):
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(611)'], start_new_session=True)\n"
        "print(p.pid)"
    )
    result = run_script(["python", "-c", code], timeout=30)
    assert result.returncode == 0
    assert len(result.left_behind) == 1 and "611" in result.left_behind[0]
    pid = int(result.stdout)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_script_without_end_is_killed_and_shows_its_stack():
    code = "import time\ndef stuck():\n    time.sleep(600)\nprint('started', flush=True)\nstuck()"
    with pytest.raises(RanksFailed, match=r"(?s)no end after 2 s.*started.*stuck"):
        run_script(["python", "-c", code], timeout=2)


def test_free_ports_are_below_the_range_of_outgoing_connections():
    assert all(15000 <= free_port() < 30000 for _ in range(5))
