"""What ``launch`` says and refuses before anything is started."""

import json
import os

import pytest

from drivetrain.cli.main import main


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    return tmp_path / "accelerate"


@pytest.fixture
def started(monkeypatch):
    """What would replace this process."""
    calls = []
    monkeypatch.setattr(os, "execvpe", lambda file, argv, env: calls.append((argv, env)))
    return calls


def test_show_config_prints_every_value_with_its_source(home, capsys, monkeypatch):
    (home / "default_config.yaml").write_text("mixed_precision: bf16\n")
    monkeypatch.setenv("DRIVETRAIN_GRACE", "5")
    argv = ["launch", "--show_config", "--cpu", "--aws_secret_access_key", "s3cr3t"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    path = home / "default_config.yaml"
    assert err == f"drivetrain launch: using config file {path}\n"
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert rows["mixed_precision"] == ["bf16", f"{path}: mixed_precision"]
    assert rows["cpu"] == ["true", "--cpu"]
    assert rows["grace"] == ["5.0", "DRIVETRAIN_GRACE"]
    assert rows["num_processes"] == ["-", "default"]
    assert rows["aws_secret_access_key"][0] == "***" and "s3cr3t" not in out


def test_one_line_names_the_file_in_use(home, capsys, started):
    (home / "default_config.yaml").write_text("mixed_precision: bf16\nuse_cpu: true\n")
    main(["launch", "x.py"])
    assert capsys.readouterr().err == f"drivetrain launch: using config file {home / 'default_config.yaml'}\n"
    (_, env) = started[0]
    assert env["ACCELERATE_MIXED_PRECISION"] == "bf16" and env["ACCELERATE_USE_CPU"] == "True"
    assert json.loads(env["DRIVETRAIN_CONFIG"])["mixed_precision"] == "bf16"
    main(["launch", "--quiet", "x.py"])
    assert capsys.readouterr().err == ""


def test_no_file_no_line(home, capsys, started):
    main(["launch", "--cpu", "x.py", "a"])
    assert capsys.readouterr().err == "" and started[0][0][1:] == ["x.py", "a"]


@pytest.mark.parametrize(
    ("text", "argv", "said"),
    [
        ("mixed_precison: bf16", ["x.py"], "default_config.yaml: unknown key 'mixed_precison'. Did you mean 'mixed_pr"),
        ("debug: true", ["--config_file", "/nowhere/a.yaml", "x.py"], "there is no config file /nowhere/a.yaml"),
        ("debug: true", ["--profile", "gpu8", "x.py"], "gpu8.yaml"),
        ("debug: true", ["--multi_gpu", "--num_processes", "2", "x.py"], "use: --cpu --num_processes 2"),
        ("fsdp_config: {fsdp_version: 7}", ["x.py"], "fsdp_config.fsdp_version is '7'; choose one of 1, 2."),
        ("distributed_type: MEGATRON_LM", ["x.py"], "asks for the strategy 'megatron'"),
        ("debug: true", ["--cpu", "--num_processes", "2", "/nowhere/x.py"], "there is no script /nowhere/x.py"),
    ],
)
def test_refusals_are_one_line_and_code_1(home, capsys, started, text, argv, said):
    (home / "default_config.yaml").write_text(text)
    assert main(["launch", *argv]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("drivetrain launch: ") and said in last and not started


def test_without_a_script(home, capsys):
    assert main(["launch", "--cpu"]) == 2
    assert "no training script is given" in capsys.readouterr().err


def test_dry_run_starts_nothing(home, capsys, started):
    assert main(["launch", "--dry_run", "--cpu", "--num_processes", "2", "x.py", "--lr", "1"]) == 0
    out = capsys.readouterr().out
    assert "x.py --lr 1" in out and "rank 1: RANK=1 LOCAL_RANK=1" in out and "ACCELERATE_USE_CPU=True" in out
    assert not started


def test_a_program_that_is_not_there(home, capsys):
    assert main(["launch", "--cpu", "--no_python", "/nowhere/program"]) == 1
    assert (
        capsys.readouterr().err
        == "drivetrain launch: /nowhere/program cannot be executed: No such file or directory.\n"
    )


def test_the_self_check_takes_no_script(home, capsys):
    assert main(["test", "x.py"]) == 1
    assert "'x.py' has no place here" in capsys.readouterr().err
