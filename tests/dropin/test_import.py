"""What importing the drop-in brings along, and who it says it is."""

from importlib import metadata

import pytest
from packaging.version import Version

import accelerate
from ranks import run_script

HEAVY = {"torch", "numpy", "transformers", "boto3", "typing", "importlib.metadata", "dataclasses", "yaml", "tqdm"}


def _new_modules(statement, before="pass"):
    code = f"import sys\n{before}\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    result = run_script(["python", "-c", code], timeout=110)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("statement", ["import accelerate", "import accelerate.commands.accelerate_cli"])
def test_the_package_and_its_command_import_nothing_heavy(statement):
    assert not _new_modules(statement) & HEAVY


def test_a_name_without_torch_imports_no_torch():
    statement = "from accelerate.utils import DistributedType, DataLoaderConfiguration, tqdm, str_to_bool"
    assert not _new_modules(statement) & {"torch", "numpy", "transformers"}


def test_the_accelerator_imports_only_torch_and_us():
    found = _new_modules("from accelerate import Accelerator", before="import torch, torch.utils.data")
    ours = {name.partition(".")[0] for name in found} & {"accelerate", "drivetrain"}
    assert ours == {"accelerate", "drivetrain"}
    assert not {name.partition(".")[0] for name in found} & {"safetensors", "psutil", "huggingface_hub", *HEAVY} - {
        "torch", "typing", "dataclasses", "numpy"
    }  # fmt: skip
    assert not found & {"torch._dynamo", "torch._inductor", "torch.onnx"}


def test_importing_initialises_no_device():
    code = "import torch, accelerate; from accelerate import Accelerator; print(torch.cuda.is_initialized())"
    assert run_script(["python", "-c", code]).stdout.split() == ["False"]


def test_versions():
    assert Version(accelerate.__version__) == Version("1.15.0")
    assert [int(part) for part in accelerate.__version__.split(".")] == [1, 15, 0]
    assert metadata.version("accelerate") == "1.15.0+drivetrain"
    assert Version("1.15.0") <= Version(metadata.version("accelerate")) < Version("1.16")


def test_star_import_gives_the_public_names():
    code = "from accelerate import *; print(Accelerator.__module__, notebook_launcher.__name__, 'LocalSGD' in dir())"
    result = run_script(["python", "-c", code])
    assert result.stdout.split() == ["accelerate.accelerator", "notebook_launcher", "False"], result.stderr
