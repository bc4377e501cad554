"""The commands ``accelerate`` and ``optimum-cli``: those of the library, under the names that scripts call."""

import pytest

from ranks import run_script

SHOW = (
    "from accelerate import Accelerator; a = Accelerator(); print('RANK', a.process_index, a.num_processes, flush=True)"
)


@pytest.mark.parametrize("command", [["accelerate", "launch"], ["accelerate-launch"]])
def test_launch_starts_two_processes(command, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SHOW)
    result = run_script([*command, "--cpu", "--num_processes", "2", script])
    assert result.returncode == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["RANK 0 2", "RANK 1 2"]


def test_the_command_as_a_module(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(7)")
    command = ["python", "-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes", "1", script]
    assert run_script(command).returncode == 7


@pytest.mark.parametrize("module", ["launch", "config", "env", "test"])
def test_each_command_as_a_module(module):
    result = run_script(["python", "-m", f"accelerate.commands.{module}", "--help"])
    assert result.returncode == 0, result.output
    assert f"accelerate {module}" in result.stdout


def test_env_names_us():
    result = run_script(["accelerate", "env"])
    assert result.returncode == 0, result.output
    assert "Drivetrain" in result.stdout


def test_config_is_written_without_questions(tmp_path):
    path = tmp_path / "config.yaml"
    result = run_script(["accelerate-config", "default", "--config_file", path])
    assert result.returncode == 0, result.output
    assert "distributed_type" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 1, "env"),
        (["--help"], 0, "env"),
        (["env"], 0, "PyTorch"),
        (["export", "onnx"], 1, "not available in this version"),
        (["exprt"], 2, "no command 'exprt'"),
    ],
)
def test_optimum_cli(arguments, code, text):
    result = run_script(["optimum-cli", *arguments])
    assert result.returncode == code, result.output
    assert text in (result.stdout if code == 0 or not arguments else result.stderr)


def test_optimum_leaves_room_for_sibling_distributions(tmp_path):
    sibling = tmp_path / "optimum"
    (sibling / "onnxruntime").mkdir(parents=True)
    (sibling / "onnxruntime" / "__init__.py").write_text("name = 'sibling'\n")
    (sibling / "commands" / "register").mkdir(parents=True)
    (sibling / "commands" / "register" / "register_it.py").write_text("name = 'registered'\n")
    code = (
        "from optimum.onnxruntime import name; import optimum.commands.register.register_it as it; "
        "from optimum.commands.optimum_cli import main; print(name, it.name, main.__name__)"
    )
    result = run_script(["python", "-c", code], env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout.split() == ["sibling", "registered", "main"], result.output
