"""Two machines: two network namespaces, each with a launcher of its own, joined by a virtual cable."""

import os
import subprocess
import sys
import time

import pytest

from ranks import clean_env

BOUND = 150  # seconds; a hang bound: two agents and two ranks import torch on two cores


class Machines:
    """Two hosts, 10.77.0.1 and 10.77.0.2."""

    def __init__(self, name):
        self.names = [f"{name}a", f"{name}b"]
        for host in self.names:
            _ip("netns", "add", host)
        a, b = self.names
        _ip("link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b)
        for number, host in enumerate(self.names, start=1):
            _ip("-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            for link in ("lo", "cable"):
                _ip("-n", host, "link", "set", link, "up")

    def close(self):
        for host in self.names:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)

    def launch(self, script, *args, flags=()):
        """One launcher on each; returns their exit codes, outputs and errors."""
        runs = []
        for rank, host in enumerate(self.names):
            argv = [
                "ip",
                "netns",
                "exec",
                host,
                sys.executable,
                "-m",
                "drivetrain",
                "launch",
                "--cpu",
                "--num_machines",
                "2",
                "--num_processes",
                "2",
                "--machine_rank",
                str(rank),
                "--main_process_ip",
                "10.77.0.1",
                "--main_process_port",
                "29511",
                *flags,
                str(script),
                *args,
            ]
            env = clean_env()
            env.pop("GLOO_SOCKET_IFNAME")  # each launcher has to find its side of the cable
            runs.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))
        try:
            outs = [one.communicate(timeout=BOUND) for one in runs]
        finally:
            for one in runs:
                if one.poll() is None:
                    one.kill()  # its agent and ranks die with it
                    one.wait()
        return [(one.returncode, *out) for one, out in zip(runs, outs, strict=True)]


def _ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@pytest.fixture
def machines():
    made = None
    try:
        made = Machines(f"dt{os.getpid()}")
    except FileNotFoundError:
        pytest.skip("two hosts are made with the command `ip`, which is not installed")
    except subprocess.CalledProcessError as error:
        for suffix in "ab":
            subprocess.run(["ip", "netns", "delete", f"dt{os.getpid()}{suffix}"], capture_output=True, check=False)
        pytest.skip(f"the kernel or its rights forbid network namespaces here: {error.stderr.strip()}")
    yield made
    made.close()


SCRIPT = """
import os, sys, torch, torch.distributed as dist
from drivetrain.config.environ import process_env
one = process_env()
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
place = one.rank, one.world_size, one.local_rank, one.local_world_size, one.node_rank, one.num_nodes
print("RANK", *place, x.item(), flush=True)
if len(sys.argv) > 1 and one.rank == 1:
    exec(sys.argv[1])
dist.all_reduce(x)
dist.destroy_process_group()
"""


@pytest.mark.limit(2 * BOUND)
@pytest.mark.parametrize("flags", [[], ["--same_network"]], ids=["endpoint", "address"])
def test_ranks_of_two_machines_meet(machines, tmp_path, flags):
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    (code_a, out_a, err_a), (code_b, out_b, err_b) = machines.launch(script, flags=flags)
    assert (code_a, code_b) == (0, 0), err_a + err_b
    assert out_a.splitlines() == ["RANK 0 2 0 1 0 2 2.0"] and out_b.splitlines() == ["RANK 1 2 0 1 1 2 2.0"]


@pytest.mark.limit(2 * BOUND)
@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("raise ValueError('my own error')", 1, "ValueError: my own error"),
        ("sys.exit(7)", 7, "drivetrain: rank 1 ended with exit code 7."),
    ],
)
def test_the_failing_ranks_traceback_is_last(machines, tmp_path, end, code, last):
    """The agent of torch writes a summary at its end; ours comes after it."""
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    (code_a, _, _), (code_b, _, err_b) = machines.launch(script, end)
    assert code_b == code and code_a != 0
    assert err_b.rstrip().splitlines()[-1] == last


BUSY = """
import os, sys, time
from drivetrain.config.environ import process_env
rank = process_env().rank
import torch.distributed as dist
dist.init_process_group("gloo")
if rank == int(sys.argv[1]):
    print("FAILS", time.time(), flush=True)
    exec(sys.argv[2])
time.sleep(100)  # in no collective
"""


@pytest.mark.limit(2 * BOUND)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)], ids=["exit", "killed"]
)
def test_a_failure_on_one_machine_ends_the_other_although_it_is_in_no_collective(
    machines, tmp_path, failing, end, code
):
    script = tmp_path / "s.py"
    script.write_text(BUSY)
    runs = machines.launch(script, str(failing), end)
    ended = time.time()
    failed = next(float(line.split()[1]) for line in runs[failing][1].splitlines() if line.startswith("FAILS"))
    assert [one[0] for one in runs] == [code, code], runs
    assert "another machine" in runs[1 - failing][2]
    assert ended - failed < 30  # a bound on hanging, far below the 100 s of the sleep; it takes about five
