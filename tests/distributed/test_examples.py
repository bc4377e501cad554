"""The examples run as a user would run them, and the demo notices what it is there to notice."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ranks import ScriptResult, run_script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _launch(processes: int, script: str, *arguments: str) -> ScriptResult:
    command = [sys.executable, "-m", "drivetrain", "launch", "--cpu", "--num_processes", str(processes)]
    out = run_script([*command, str(EXAMPLES / script), *arguments], timeout=110)
    assert out.returncode == 0, out.output
    assert out.left_behind == ()
    return out


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- digits ---


@pytest.mark.limit(240)
def test_digits_learns_the_same_on_two_processes(tmp_path: Path) -> None:
    curves = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        _launch(processes, "digits.py", "--epochs", "2", "--output_dir", str(folder))
        result = json.loads((folder / "result.json").read_text())
        assert (result["processes"], len(result["loss"])) == (processes, 44)
        assert 0 < result["accuracy"] < 1
        assert result["accuracy"] * 389 == pytest.approx(round(result["accuracy"] * 389), abs=1e-4)
        curves[processes] = result["loss"]
    assert curves[2] == pytest.approx(curves[1], abs=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_digits_in_low_precision(tmp_path: Path, precision: str) -> None:
    from safetensors.torch import load_file

    from drivetrain.tracking.jsonl import read_jsonl

    arguments = ["--epochs", "4", "--batch_size", "32", "--mixed_precision", precision, "--output_dir", str(tmp_path)]
    _launch(2, "digits.py", *arguments)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["accuracy"] > 0.9
    records = [record for record in read_jsonl(tmp_path / "digits") if "loss" in record["values"]]
    assert [record["step"] for record in records] == list(range(1, 4 * 44 + 1))
    assert [record["values"]["loss"] for record in records] == result["loss"]
    weights = load_file(tmp_path / "model" / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    assert shapes == {
        "0.weight": (32, 1, 3, 3), "0.bias": (32,), "2.weight": (64, 32, 3, 3), "2.bias": (64,),
        "6.weight": (10, 1024), "6.bias": (10,),
    }  # fmt: skip


def test_digits_refuses_a_batch_that_cannot_be_shared(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "digits.py"), "--batch_size", "33"]
    out = run_script([*command, "--output_dir", str(tmp_path / "out")], timeout=60)
    assert not (tmp_path / "out").exists()
    assert out.returncode == 1
    assert out.stderr.strip().endswith("--batch_size 33 must be a multiple of processes x accumulation = 2")


# --- a loop written for the incumbent ---


@pytest.mark.parametrize(
    "command",
    [
        ["python"],
        ["torchrun", "--standalone", "--nproc-per-node", "2"],
        ["accelerate", "launch"],
        ["accelerate", "launch", "--cpu", "--num_processes", "2"],
    ],
    ids=" ".join,
)
def test_transformer_learns(command: list[str]) -> None:
    out = run_script([*command, EXAMPLES / "transformer.py"], timeout=110)
    assert (out.returncode, out.left_behind) == (0, ()), out.output
    losses = [float(text) for text in re.findall(r"loss (\S+)", out.stdout)]
    assert len(losses) == 10
    assert losses[-1] < 0.1 < 0.5 < losses[0]


# --- the demo's own judgement ---


@pytest.mark.parametrize(
    "one, two, accuracy, wrong",
    [
        ([1.0, 0.5], [1.0, 0.50005], 0.96, []),
        ([1.0, 0.5], [1.0, 0.5002], 0.97, ["the loss curves differ by more than is allowed"]),
        ([1.0, math.nan], [1.0, math.nan], 0.97, ["the loss curves differ by more than is allowed"]),
        ([1.0, 0.5], [1.0], 0.97, ["one process took 2 steps and two took 1"]),
        ([1.0], [1.0], 0.95, ["the accuracy on 2 process(es) is too low"]),
        ([1.0], [1.0], math.nan, ["the accuracy on 2 process(es) is too low"]),
    ],
)
def test_the_demo_judges(one: list[float], two: list[float], accuracy: float, wrong: list[str]) -> None:
    results = [{"processes": 1, "loss": one, "accuracy": 0.99}, {"processes": 2, "loss": two, "accuracy": accuracy}]
    assert _load("demo").judge(results) == wrong


def test_the_demo_shows_both_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = _load("demo")
    one, two = [1 / (step + 1) for step in range(100)], [1 / (step + 1) + 1e-6 for step in range(100)]
    demo.print_table(one, two)
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 13
    assert lines[1].split() == ["1", "1.000000", "1.000001", "1.0e-06"]
    assert lines[-1].split() == ["100", "0.010000", "0.010001", "1.0e-06"]
    demo.draw(one, two, tmp_path / "curves.png")
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 10_000
