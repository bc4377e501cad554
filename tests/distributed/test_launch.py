"""Ranks on one machine: started, watched, ended, and told about. Real processes, started in both ways."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from ranks import clean_env, run_script

METHODS = ["fork", "fresh"]
BOUND = 60  # seconds; a hang bound, most of it is the import of torch on a busy machine

LAUNCH = [sys.executable, "-m", "drivetrain", "launch", "--cpu", "--num_processes", "2"]


def _script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text("import os, sys, time, signal\nRANK = os.environ['RANK']\n" + text)
    return path


def _launch(tmp_path, method, text, *args, flags=(), env=None):
    path = _script(tmp_path, text)
    return run_script([*LAUNCH, "--start_method", method, *flags, path, *args], timeout=BOUND, env=env)


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


SEEN = """
import json
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"]
seen = {name: os.environ[name] for name in names}
seen["argv"], seen["path"], seen["name"], seen["file"] = sys.argv, sys.path[0], __name__, __file__
seen["stdin"], seen["torch"] = sys.stdin.read(), "torch" in sys.modules
seen["main"] = sys.modules["__main__"].RANK
print(json.dumps(seen), flush=True)
"""


def test_ranks_are_started_as_python_would_start_the_script(tmp_path, method):
    import json

    result = _launch(tmp_path, method, SEEN, "--x", "a b")
    assert result.returncode == 0, result.stderr
    ranks = sorted((json.loads(line) for line in result.stdout.splitlines()), key=lambda one: one["RANK"])
    script = str(tmp_path / "script.py")
    for number, seen in enumerate(ranks):
        assert seen == {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "argv": [script, "--x", "a b"],
            "path": str(tmp_path),
            "name": "__main__",
            "file": script,
            "stdin": "",
            "torch": method == "fork",
            "main": str(number),
        }
    assert len(ranks) == 2 and result.left_behind == ()


def test_a_module(tmp_path, method):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:], flush=True)\n")
    argv = [*LAUNCH, "--start_method", method, "-m", "pkg.train", "x"]
    result = run_script(argv, timeout=BOUND, cwd=tmp_path)
    assert result.stdout.splitlines() == ["__main__ pkg ['x']"] * 2, result.stderr


def test_a_program(tmp_path):
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\necho "$RANK of $WORLD_SIZE: $1"\ntest "$RANK" = "$2" && exit 5; test -z "$2" || sleep 1000\n'
    )
    program.chmod(0o755)
    result = run_script([*LAUNCH, "--no_python", program, "x"], timeout=BOUND)
    assert sorted(result.stdout.splitlines()) == ["0 of 2: x", "1 of 2: x"]
    assert result.returncode == 0
    assert run_script([*LAUNCH, "--no_python", program, "x", "1"], timeout=BOUND).returncode == 5


# --- failures --------------------------------------------------------------------------------------------------------

RAISES = """
import threading
if RANK == "1":
    open(sys.argv[1], "w").close()
    raise ValueError("my own error")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
def late(*_):
    print("noise of the other rank", file=sys.stderr, flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, late)
time.sleep(1000)
"""


def test_the_traceback_of_the_first_failing_rank_is_last(tmp_path, method):
    result = _launch(tmp_path, method, RAISES, tmp_path / "mark")
    assert result.returncode == 1
    lines = result.stderr.rstrip().splitlines()
    assert lines[-1] == "ValueError: my own error"
    start = len(lines) - 1 - lines[::-1].index("Traceback (most recent call last):")
    assert lines[start + 1 :] == [  # whole, although the other rank may have printed in between at first
        f'  File "{tmp_path / "script.py"}", line 7, in <module>',
        '    raise ValueError("my own error")',
        "ValueError: my own error",
    ]
    assert result.left_behind == ()


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("sys.exit('a reason')", 1), ("os._exit(9)", 9)])
def test_the_exit_code_is_the_scripts(tmp_path, method, end, code):
    result = _launch(tmp_path, method, f"if RANK == '1':\n    {end}\ntime.sleep(1000)\n")
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert ("a reason" in result.stderr) == ("a reason" in end)
    assert result.left_behind == ()


KILLED = """
import subprocess
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(worker.pid, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if RANK == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""


def test_a_killed_rank_ends_the_rest_and_what_they_started(tmp_path, method):
    """The other rank ignores SIGTERM, so it has to be killed; the workers are in nobody's hands but ours."""
    result = _launch(tmp_path, method, KILLED)
    assert result.returncode == 128 + signal.SIGKILL
    assert result.stderr.rstrip().splitlines()[-1].startswith("drivetrain: rank 1 was ended by SIGKILL.")
    assert result.left_behind == ()
    assert result.seconds < BOUND / 2


COLLECTIVE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
for step in range(10**9):
    dist.all_reduce(x)
    x /= 2
    if step == 50 and RANK == "1":
        exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("raise ValueError('my own error')", 1, "ValueError: my own error"),
        ("os.kill(os.getpid(), 9)", 137, "drivetrain: rank 1 was ended by SIGKILL."),
        ("os._exit(9)", 9, "drivetrain: rank 1 ended with exit code 9."),
    ],
)
def test_the_peers_reaction_is_not_taken_for_the_cause(tmp_path, end, code, last):
    """When a rank goes, the others fail in their collective a moment later, or even before its end is seen."""
    result = _launch(tmp_path, "fork", COLLECTIVE, end)
    assert result.returncode == code, result.stderr
    assert last in result.stderr.rstrip().splitlines()[-1]


def test_a_failed_group_is_started_again(tmp_path, method):
    text = "count = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint(RANK, count, flush=True)\nsys.exit(count != '2')\n"
    result = _launch(tmp_path, method, text, flags=["--max_restarts", "3"])
    assert result.returncode == 0
    assert {"0 2", "1 2"} <= set(result.stdout.splitlines()) and "restart 2 of 3" in result.stderr
    assert "restart 3" not in result.stderr


def test_a_folder_for_the_output_of_each_rank(tmp_path):
    script = _script(tmp_path, "print('said by', RANK, flush=True)\nsys.exit(7 if RANK == '1' else 0)\n")
    result = run_script([*LAUNCH, "--log_dir", tmp_path / "logs", "--tee", "3", script], timeout=BOUND)
    assert result.returncode == 7
    assert result.stderr.rstrip().splitlines()[-1] == "drivetrain: rank 1 ended with exit code 7."
    assert [path.read_text() for path in (tmp_path / "logs").rglob("1/stdout.log")] == ["said by 1\n"]


def test_an_error_before_the_script_runs(tmp_path, method):
    result = _launch(tmp_path, method, "this is no python\n")
    assert result.returncode == 1
    assert "SyntaxError" in result.stderr.rstrip().splitlines()[-1]
    assert "drivetrain/launch" not in result.stderr


def test_the_scripts_own_excepthook_is_used(tmp_path, method):
    result = _launch(tmp_path, method, "sys.excepthook = lambda *e: print('HOOK', e[1], file=sys.stderr)\n1 / 0\n")
    assert result.returncode == 1 and "HOOK division by zero" in result.stderr and "Traceback" not in result.stderr


ENDS = """
import atexit, gzip, threading
folder = sys.argv[1] + "/" + RANK
open_file = open(folder + ".txt", "w"); open_file.write("kept")
packed = gzip.open(folder + ".gz", "wt"); packed.write("kept")
atexit.register(lambda: open(folder + ".atexit", "w").close())
threading.Thread(target=lambda: (time.sleep(0.2), open(folder + ".thread", "w").close())).start()
print("no newline at the end", end="")
"""


def test_the_end_loses_nothing(tmp_path, method):
    """Threads are waited for, exit functions run, open files are written: as after `python script.py`."""
    import gzip

    result = _launch(tmp_path, method, ENDS, tmp_path)
    assert (result.returncode, result.stdout) == (0, "no newline at the end" * 2), result.stderr
    for rank in "01":
        assert (tmp_path / f"{rank}.txt").read_text() == "kept"
        assert gzip.open(tmp_path / f"{rank}.gz", "rt").read() == "kept"
        assert (tmp_path / f"{rank}.atexit").exists() and (tmp_path / f"{rank}.thread").exists()


def test_forked_ranks_do_not_share_randomness(tmp_path):
    text = "import random, numpy\nprint(random.random(), numpy.random.rand(), flush=True)\n"
    first, second = _launch(tmp_path, "fork", text).stdout.splitlines()
    assert all(a != b for a, b in zip(first.split(), second.split(), strict=True))


# --- signals ---------------------------------------------------------------------------------------------------------

WAITS = """
def polite(*_):
    print("saved", RANK, flush=True)
    sys.exit(143)
if sys.argv[2] == "polite":
    signal.signal(signal.SIGTERM, polite)
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(f"{sys.argv[1]}/{RANK}.part", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, f"{sys.argv[1]}/{RANK}.pid")
while True:
    time.sleep(0.05)
"""


class Running:
    """A launcher whose two ranks are up; `pids` are theirs."""

    def __init__(self, tmp_path, method, manner, *flags):
        script = _script(tmp_path, WAITS)
        self.process = subprocess.Popen(
            [*LAUNCH, "--start_method", method, *flags, str(script), str(tmp_path), manner],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_env(), start_new_session=True,
        )  # fmt: skip
        files = [tmp_path / f"{rank}.pid" for rank in "01"]
        _until(lambda: all(one.exists() for one in files))
        self.pids = [int(one.read_text()) for one in files]

    def end(self):
        """Wait for the launcher; returns its code and output, once the ranks are gone too."""
        out, _ = self.process.communicate(timeout=BOUND)
        _until(lambda: not any(_runs(pid) for pid in self.pids))
        return self.process.returncode, out


def _until(true, seconds=BOUND):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def running(tmp_path, method):
    started = []

    def start(manner, *flags):
        started.append(Running(tmp_path, method, manner, *flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        for pid in one.pids:
            if _runs(pid):
                os.kill(pid, signal.SIGKILL)


def test_sigterm_reaches_the_ranks_and_their_code_is_ours(running):
    one = running("polite")
    one.process.terminate()
    code, out = one.end()
    assert code == 143 and "saved 0" in out and "saved 1" in out
    assert "SIGTERM passed on to the ranks; they have 60 s" in out


@pytest.mark.parametrize("method", ["fork"])  # of no effect here: the agent starts the ranks
@pytest.mark.parametrize(("manner", "code"), [("polite", 143), ("plain", 143)])
def test_sigterm_reaches_the_ranks_of_the_agent(running, tmp_path, manner, code):
    one = running(manner, "--log_dir", str(tmp_path / "logs"), "--tee", "3")
    one.process.terminate()
    found, out = one.end()
    assert found == code
    assert ("saved 0" in out and "saved 1" in out) == (manner == "polite")


def test_an_interrupt_reaches_the_ranks(running):
    one = running("plain")
    one.process.send_signal(signal.SIGINT)
    code, out = one.end()
    assert code == 130 and out.count("KeyboardInterrupt") == 2


def test_after_the_grace_ranks_are_killed(running):
    one = running("stubborn", "--grace", "0.5")
    one.process.terminate()
    assert one.end()[0] == 143


def test_a_second_interrupt_kills_at_once(running):
    one = running("stubborn")
    one.process.send_signal(signal.SIGINT)
    assert one.process.stdout is not None
    line = one.process.stdout.readline()  # the first has been acted upon
    assert "SIGINT passed on" in line
    one.process.send_signal(signal.SIGINT)
    assert one.end()[0] == 130


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_ranks_do_not_outlive_a_killed_launcher(running):
    one = running("stubborn")
    one.process.kill()
    assert one.end()[0] == -signal.SIGKILL


# --- ports, terminal, configuration ----------------------------------------------------------------------------------

MEETS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(x.item(), os.environ["MASTER_PORT"], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("flags", [[], ["--log_dir", "logs"]], ids=["watcher", "agent"])
def test_a_taken_port_is_no_problem(tmp_path, flags):
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        taken = server.getsockname()[1]
        flags = [part.replace("logs", str(tmp_path / "logs")) for part in flags]
        result = _launch(tmp_path, "auto", MEETS, flags=[*flags, "--main_process_port", str(taken)])
    assert result.returncode == 0, result.stderr
    if flags:  # the agent meets at the port, and hands another one to the ranks
        assert f"drivetrain: port {taken} is taken on this machine; using " in result.stderr
        return
    (first, port), second = result.stdout.splitlines()[0].split(), result.stdout.splitlines()[1].split()
    assert first == "2.0" and second == [first, port] and int(port) != taken
    assert f"drivetrain: port {taken} is taken on this machine; using {port}" in result.stderr


def test_two_launchers_at_once_do_not_meet(tmp_path):
    script = _script(tmp_path, MEETS)
    runs = [subprocess.Popen([*LAUNCH, str(script)], stdout=subprocess.PIPE, env=clean_env()) for _ in range(2)]
    outs = [one.communicate(timeout=2 * BOUND)[0].decode().split() for one in runs]
    assert [one.returncode for one in runs] == [0, 0]
    assert all(out[0] == out[2] == "2.0" for out in outs)


def test_on_a_terminal_ranks_have_a_terminal(tmp_path):
    script = _script(tmp_path, "print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1).columns)\n")
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 91, 0, 0))
    process = subprocess.Popen([*LAUNCH, str(script)], stdin=slave, stdout=slave, stderr=slave, env=clean_env())
    os.close(slave)
    text = b""
    while select.select([master], [], [], BOUND)[0]:
        try:
            data = os.read(master, 1000)
        except OSError:
            break
        text += data
    os.close(master)
    assert process.wait(BOUND) == 0
    assert text.decode().split("\r\n") == ["True True 91"] * 2 + [""]


@pytest.mark.parametrize("kind", ["MULTI_CPU", "MULTI_GPU"])
def test_a_config_file_with_the_cpu_starts_its_ranks(tmp_path, kind):
    config = tmp_path / "c.yaml"
    config.write_text(f"distributed_type: {kind}\nnum_processes: 2\nmixed_precision: bf16\n")
    text = "print(RANK, os.environ['ACCELERATE_MIXED_PRECISION'], os.environ['ACCELERATE_USE_CPU'])\n"
    flags = ["--cpu"] if kind == "MULTI_GPU" else []
    script = _script(tmp_path, text)
    argv = [sys.executable, "-m", "drivetrain", "launch", *flags, "--config_file", config, script]
    result = run_script(argv, timeout=BOUND)
    assert sorted(result.stdout.splitlines()) == ["0 bf16 True", "1 bf16 True"], result.stderr
    assert result.stderr == f"drivetrain launch: using config file {config}\n"


@pytest.mark.parametrize("code", [0, 7])
def test_one_process_is_the_script_itself(tmp_path, code):
    script = tmp_path / "s.py"
    script.write_text(
        f"import os, sys\nprint(os.getppid(), sys.stdin.read(), 'RANK' in os.environ)\nsys.exit({code})\n"
    )
    result = run_script([*LAUNCH[:-1], "1", script], timeout=BOUND, stdin="typed")
    assert result.returncode == code and result.stderr == ""
    assert result.stdout == f"{os.getpid()} typed False\n"


@pytest.mark.parametrize(("processes", "precision"), [(1, "no"), (2, "no"), (2, "fp16")])
def test_the_self_check(processes, precision):
    argv = [sys.executable, "-m", "drivetrain", "test", "--cpu", "--num_processes", str(processes)]
    argv += ["--mixed_precision", precision]
    result = run_script(argv, timeout=2 * BOUND)
    assert result.returncode == 0, result.stderr
    assert f"{processes} process(es) on cpu" in result.stdout and "The self-check has passed" in result.stdout
