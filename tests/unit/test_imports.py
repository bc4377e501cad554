"""What an import may bring along: nothing slow before it is needed, nothing optional ever."""

import pkgutil
from pathlib import Path

import pytest

from ranks import run_script

LIBRARY = Path(__file__).resolve().parents[2] / "src" / "drivetrain"
OPTIONAL = (
    "accelerate aim clearml comet_ml datasets deepspeed diffusers dvclive huggingface_hub matplotlib mlflow "
    "onnxruntime optimum peft psutil rich safetensors sklearn swanlab tensorboard torchdata torch_xla tqdm trackio "
    "transformers wandb yaml"
).split()


def _imported_by(statement, before="pass"):
    code = f"import sys\n{before}\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    result = run_script(["python", "-c", code], timeout=110)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def _modules_of(package):
    folder = LIBRARY / package
    return [
        f"drivetrain.{package}",
        *(f"drivetrain.{package}.{one.name}" for one in pkgutil.iter_modules([str(folder)])),
    ]


def test_importing_the_package_imports_no_torch():
    assert not _imported_by("import drivetrain") & {"torch", "numpy", *OPTIONAL}


def test_core_and_config_never_import_torch():
    names = ", ".join([*_modules_of("core"), *_modules_of("config")])
    assert not _imported_by(f"import {names}") & {"torch", "numpy", *OPTIONAL}


def test_the_command_line_imports_no_torch():
    assert not _imported_by("import drivetrain.cli.main") & {"torch", "numpy", *OPTIONAL}


@pytest.mark.parametrize("statement", ["from drivetrain import Accelerator", "from accelerate import Accelerator"])
def test_the_object_needs_nothing_but_torch(statement):
    optional = set(OPTIONAL) - set(statement.split())
    assert not _imported_by(statement, before="import torch") & optional
