"""The program's front: commands, help, exit codes, and what it does not import."""

import subprocess
import sys

import pytest

from drivetrain.cli.main import COMMANDS, main
from ranks import clean_env


def _run(*argv):
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "drivetrain", *argv],
        capture_output=True,
        text=True,
        env=clean_env(),
        timeout=100,
        check=False,
    )


def _imported(result):
    return {line.rsplit("|", 1)[1].strip() for line in result.stderr.splitlines() if line.startswith("import time:")}


def test_without_a_command(capsys):
    assert main([], prog="accelerate") == 1
    text = capsys.readouterr().out
    assert text.startswith("usage: accelerate ") and all(name in text for name in COMMANDS)


@pytest.mark.parametrize("argv", [["--help"], ["launch", "--help"], ["config", "--help"]])
def test_help_imports_nothing_heavy(argv):
    result = _run(*argv)
    assert result.returncode == 0 and "usage: drivetrain" in result.stdout
    assert not {"torch", "numpy", "yaml", "transformers"} & _imported(result)


def test_one_process_imports_next_to_nothing(tmp_path):
    """What stands between the command and the first line of the script is the start of two interpreters."""
    script = tmp_path / "s.py"
    script.write_text("print('first line')")
    result = _run("launch", "--cpu", "--num_processes", "1", str(script))
    assert (result.returncode, result.stdout) == (0, "first line\n")
    heavy = {
        "argparse",
        "dataclasses",
        "typing",
        "re",
        "json",
        "yaml",
        "subprocess",
        "inspect",
        "pathlib",
        "enum",
        "torch",
    }
    assert not heavy & _imported(result)


@pytest.mark.parametrize("name", ["lanch", "estimate-memory", "-x"])
def test_unknown_command(capsys, name):
    assert main([name]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"drivetrain: there is no command {name!r}.")
    assert "Commands: config, env, launch, test." in said and said.count("\n") == 1
    assert ("Did you mean 'launch'?" in said) == (name == "lanch")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("drivetrain 0.")


def test_env_tells_versions_and_the_config(capsys, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("mixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n")
    assert main(["env", "--config_file", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"- Python version: {sys.version.split()[0]}" in text and "PyTorch version" in text
    assert "\t- mixed_precision: bf16" in text
    assert main(["env", "--config_file", str(tmp_path / "nowhere.yaml")]) == 1
    assert "nowhere.yaml" in capsys.readouterr().err
