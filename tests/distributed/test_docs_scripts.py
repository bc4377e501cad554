"""The scripts in the pages run as they stand, on one process and on two, and print the same."""

import re
from pathlib import Path

import pytest

from ranks import run_script

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", flags=re.MULTILINE | re.DOTALL)
SCRIPTS = {
    name: source
    for page in sorted(DOCS.rglob("*.md"))
    for source, name in BLOCK.findall(page.read_text(encoding="utf-8"))
}
SAME_ON_TWO = ("train.py", "evaluate.py")  # the others count their batch size for each process, as the pages say


def test_the_pages_have_the_scripts():
    assert set(SCRIPTS) == {"train.py", "accumulate.py", "evaluate.py", "plain.py", "prepared.py"}


@pytest.mark.limit(300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs(name, tmp_path):
    script = tmp_path / name
    script.write_text(SCRIPTS[name])
    one = run_script(["python", script], cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert one.returncode == 0, one.output
    if "drivetrain" not in SCRIPTS[name]:
        return
    two = run_script(["drivetrain", "launch", "--cpu", "--num_processes", "2", script], cwd=tmp_path)
    assert (two.returncode, two.left_behind) == (0, ()), two.output
    if name in SAME_ON_TWO:
        assert one.stdout == two.stdout
        assert one.stdout.strip()
