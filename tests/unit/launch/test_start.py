"""How ranks are started: what is forked and what is not, and what the parent imports for a script."""

import pytest

from drivetrain.core.errors import LaunchError
from drivetrain.launch import start
from drivetrain.launch.base import Command


def _chosen(tmp_path, text, method="auto", kind="", **options):
    path = tmp_path / "s.py"
    path.write_text(text)
    starter = start.choose(method, Command(str(path), [], **options), kind)
    starter.close()
    return starter


@pytest.mark.parametrize(
    ("text", "options", "forks"),
    [
        ("import torch", {}, True),
        ("import os, sys\nfrom json import dumps", {}, False),  # nothing that takes time to import
        ("from mine import main", {}, True),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", {}, False),  # read when torch is imported
        ("import os\nos.environ['MY_NAME'] = '4'\nimport torch", {}, True),
        ("import torch", {"module": True}, True),
        ("import torch", {"no_python": True}, False),
    ],
)
def test_what_auto_chooses(tmp_path, text, options, forks):
    assert isinstance(_chosen(tmp_path, text, **options), start.ForkStarter) == forks


def test_other_vendors_devices_are_not_forked(tmp_path):
    assert isinstance(_chosen(tmp_path, "import torch", kind="cuda"), start.ForkStarter)
    assert isinstance(_chosen(tmp_path, "import torch", kind="npu"), start.FreshStarter)


def test_a_method_that_was_asked_for_is_used(tmp_path):
    assert isinstance(_chosen(tmp_path, "import os", method="fork"), start.ForkStarter)
    assert isinstance(_chosen(tmp_path, "import torch", method="fresh"), start.FreshStarter)
    with pytest.raises(LaunchError, match="cannot run a --no_python program"):
        _chosen(tmp_path, "", method="fork", no_python=True)


def test_what_the_parent_imports():
    assert start.preload("import torch") == start.TORCH
    assert start.preload("import torch\ntorch.optim.SGD") == [*start.TORCH, *start.TRAINING]
    assert start.preload("from accelerate import Accelerator")[-1] == "drivetrain.accelerator"
    assert start.preload(None) == [*start.TORCH, *start.TRAINING]
