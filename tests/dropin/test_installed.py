"""Another distribution called accelerate in the same environment is refused at import, by name."""

import shutil
from pathlib import Path

import pytest

import accelerate
from accelerate._installed import check
from ranks import run_script

OURS = "accelerate-1.15.0+drivetrain.dist-info"
THEIRS = "accelerate-1.15.0.dist-info"


def _folder(root, *metadata):
    for name in metadata:
        (root / name).mkdir(parents=True)
    root.mkdir(parents=True, exist_ok=True)
    return root


@pytest.fixture
def site(tmp_path):
    return _folder(tmp_path / "first" / "site-packages")


def test_alone_it_is_fine(site):
    _folder(site, OURS, "accelerate_helpers-1.0.dist-info", "torch-2.13.0.dist-info")
    check(str(site / "accelerate" / "__init__.py"), [str(site)])


def test_metadata_beside_our_files(site):
    _folder(site, OURS, THEIRS)
    with pytest.raises(ImportError) as caught:
        check(str(site / "accelerate" / "__init__.py"), [str(site)])
    for text in (str(site / "accelerate"), str(site / THEIRS), "pip uninstall -y accelerate"):
        assert text in str(caught.value)
    assert caught.value.name == "accelerate"


def test_files_of_a_checkout_while_the_other_one_is_installed(tmp_path, site):
    _folder(site, THEIRS)
    with pytest.raises(ImportError, match="two distributions"):
        check(str(tmp_path / "dropin" / "accelerate" / "__init__.py"), [str(tmp_path), str(site)])


def test_one_of_the_system_that_ours_stands_before(tmp_path, site):
    _folder(site, OURS)
    system = _folder(tmp_path / "system" / "dist-packages", THEIRS)
    check(str(site / "accelerate" / "__init__.py"), [str(site), str(system)])
    with pytest.raises(ImportError, match="dist-packages"):
        check(str(site / "accelerate" / "__init__.py"), [str(system), str(site)])


def test_folders_that_do_not_exist_are_passed_over(site):
    check(str(site / "accelerate" / "__init__.py"), ["", "/nowhere/site-packages", "/nowhere/python.zip"])


def test_the_package_itself_refuses(tmp_path):
    site = _folder(tmp_path / "site-packages", THEIRS)
    shutil.copytree(Path(accelerate.__file__).parent, site / "accelerate")
    result = run_script(["python", "-c", "import accelerate"], env={"PYTHONPATH": str(site)})
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()
    assert any("ImportError: two distributions called `accelerate`" in line for line in last)
    assert "Traceback" in result.stderr


def test_the_command_of_optimum_refuses_too(tmp_path):
    site = _folder(tmp_path / "site-packages", "optimum-2.3.0.dist-info", "optimum_onnx-0.1.0.dist-info")
    code = "import optimum.commands"
    result = run_script(["python", "-c", code], env={"PYTHONPATH": str(site)})
    assert result.returncode == 1
    assert "ImportError: two distributions called `optimum`" in result.stderr
    (site / "optimum-2.3.0.dist-info").rmdir()
    assert run_script(["python", "-c", code], env={"PYTHONPATH": str(site)}).returncode == 0
