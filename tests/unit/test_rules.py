"""Every source file keeps the project's rules, and every rule bites on a source that breaks it."""

import ast
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from rules import function_lengths, module_docstring, no_backend_branch, no_module_state, telling_name

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "src" / "drivetrain"
DROPINS = (ROOT / "dropin" / "accelerate" / "accelerate", ROOT / "dropin" / "optimum" / "optimum")
RULES = (module_docstring, telling_name, no_module_state, no_backend_branch)

FILE_GUIDE, FILE_STOP, FUNCTION_GUIDE = 400, 600, 60  # lines


def _files(*folders):
    return sorted(path for folder in folders for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _problems(rule, base, path):
    below = PurePosixPath(path.relative_to(base).as_posix())
    return [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in rule(_parse(path), below)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_library_keeps_the_rule(rule):
    found = [problem for path in _files(LIBRARY) for problem in _problems(rule, LIBRARY, path)]
    assert not found, "\n".join(["", *found])


def test_every_module_of_the_drop_ins_says_why_it_exists():
    found = [one for base in DROPINS for path in _files(base) for one in _problems(module_docstring, base, path)]
    assert not found, "\n".join(["", *found])


def test_the_optimum_namespace_has_no_init():
    assert not (ROOT / "dropin" / "optimum" / "optimum" / "__init__.py").exists()


# --- sizes -----------------------------------------------------------------------------------------------------------


def _allowed():
    tomllib = pytest.importorskip("tomllib")
    table = tomllib.loads((ROOT / "sizes.toml").read_text())
    return table.get("files", {}), table.get("functions", {})


def _too_long(path, guide):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    return {path.relative_to(ROOT).as_posix(): lines} if lines > guide else {}


def _too_long_functions(path):
    name = path.relative_to(ROOT).as_posix()
    return {
        f"{name}::{function}": lines for function, lines in function_lengths(_parse(path)) if lines > FUNCTION_GUIDE
    }


def _measured():
    product = _files(ROOT / "src", ROOT / "dropin", ROOT / "examples", ROOT / "benchmarks", ROOT / "docs")
    tests = _files(ROOT / "tests")
    files, functions = {}, {}
    for path in product:
        files |= _too_long(path, FILE_GUIDE)
        functions |= _too_long_functions(path)
    for path in tests:
        files |= _too_long(path, FILE_STOP)
    return files, functions


def _unexplained(measured, allowed):
    """Names over the guide without an entry, with an entry that is too small, or with an entry that says no reason."""
    return [
        f"{name}: {lines} lines, allowed {allowed[name]['lines'] if name in allowed else 'by the guide only'}"
        for name, lines in measured.items()
        if name not in allowed or lines > allowed[name]["lines"] or not allowed[name]["reason"].strip()
    ]


def test_files_and_functions_keep_the_guide_or_have_a_reason():
    (files, functions), (file_reasons, function_reasons) = _measured(), _allowed()
    found = _unexplained(files, file_reasons) + _unexplained(functions, function_reasons)
    assert not found, "\n".join(["over the guide; split it, or give the reason in sizes.toml:", *found])


def test_no_reason_is_left_over():
    (files, functions), (file_reasons, function_reasons) = _measured(), _allowed()
    assert set(file_reasons) <= set(files) and set(function_reasons) <= set(functions)


def test_size_rule_bites():
    assert _unexplained({"a.py": 401}, {}) == ["a.py: 401 lines, allowed by the guide only"]
    assert _unexplained({"a.py": 460}, {"a.py": {"lines": 450, "reason": "one table"}})
    assert _unexplained({"a.py": 440}, {"a.py": {"lines": 450, "reason": " "}})
    assert not _unexplained({"a.py": 440}, {"a.py": {"lines": 450, "reason": "one table"}})
    body = "\n".join("    x = 1" for _ in range(59))
    tree = ast.parse(f"class A:\n  @property\n  def f(self):\n{body}\n")
    assert list(function_lengths(tree)) == [("A.f", 61)]


# --- the rules bite --------------------------------------------------------------------------------------------------

BAD = [
    (module_docstring, "a.py", "x = 1", "no module docstring"),
    (module_docstring, "a.py", '"""One\ntwo\nthree\nfour."""', "longer than three"),
    (telling_name, "data/utils.py", "", "'utils'"),
    (telling_name, "_helpers/loader.py", "", "'_helpers'"),
    (no_module_state, "a.py", "cache = {}", "'cache'"),
    (no_module_state, "a.py", "seen: list[int] = []", "'seen'"),
    (no_module_state, "a.py", "try:\n    import x\nexcept ImportError:\n    table = dict(a=1)", "'table'"),
    (no_module_state, "a.py", "from collections import deque\n_queue = deque()", "'_queue'"),
    (no_module_state, "a.py", "CACHE = {}\ndef f(k):\n    CACHE[k] = 1", "changed here"),
    (no_module_state, "a.py", "NAMES = []\ndef f(k):\n    NAMES.append(k)", "changed here"),
    (no_module_state, "a.py", "NAMES = [1]\nclass A:\n    def f(self):\n        del NAMES[0]", "changed here"),
    (no_module_state, "a.py", "done = False\ndef f():\n    global done\n    done = True", "`global done`"),
    (no_backend_branch, "session.py", "if strategy.name == 'ddp': pass", "strategy.name"),
    (no_backend_branch, "data/loader.py", "if self.device.type in ('cuda', 'xpu'): pass", "device.type"),
    (no_backend_branch, "session.py", "match platform.name:\n    case 'xla': pass", "platform.name"),
    (no_backend_branch, "training/a.py", "isinstance(s, (int, DdpStrategy))", "DdpStrategy"),
    (no_backend_branch, "accelerator.py", "x = t != DistributedType.FSDP", "DistributedType.FSDP"),
]

GOOD = [
    (module_docstring, "a.py", '"""Why.\n\nMore\nand\nmore\nlines."""'),
    (telling_name, "launch/commonplace.py", ""),
    (no_module_state, "a.py", "TABLE = {'a': 1}\nORDER = [1, 2]\n__all__ = ['f']\nname = 'x'\npair = (1, 2)"),
    (no_module_state, "a.py", "NAMES = {}\nfor i in range(3):\n    NAMES[i] = str(i)"),
    (no_module_state, "a.py", "def f():\n    found = []\n    found.append(1)\n    return found"),
    (no_backend_branch, "platforms/cuda.py", "if device.type == 'cuda': pass"),
    (no_backend_branch, "session.py", "isinstance(s, Strategy) and x.name == 'a' and t == DistributedType.NO"),
    (no_backend_branch, "config/resolve.py", "x = t == DistributedType.FSDP"),
    (no_backend_branch, "data/a.py", "x = a.device.type != b.device.type or a.device.type in ('cpu', 'meta')"),
    (no_backend_branch, "training/rng.py", "x = kind.value == platform.name"),
]


@pytest.mark.parametrize(("rule", "path", "source", "said"), BAD)
def test_rule_bites(rule, path, source, said):
    found = [text for _, text in rule(ast.parse(source), PurePosixPath(path))]
    assert len(found) == 1 and said in found[0]


@pytest.mark.parametrize(("rule", "path", "source"), GOOD)
def test_rule_lets_pass(rule, path, source):
    assert list(rule(ast.parse(source), PurePosixPath(path))) == []


# --- the linters bite ------------------------------------------------------------------------------------------------


def _ruff(source, path):
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--output-format=concise",
        "--stdin-filename",
        path,
        "-",
    ]
    return subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import os\n\nx = os.environ\n", "TID251"),
        ("from os import getenv\n\nx = getenv\n", "TID251"),
        ("try:\n    x = 1\nexcept Exception:\n    x = 2\n", "BLE001"),
    ],
)
def test_ruff_bites_in_the_library(source, code):
    assert code in _ruff(source, "src/drivetrain/data/a.py")


def test_ruff_knows_the_boundaries():
    assert "TID251" not in _ruff("import os\n\nx = os.environ\n", "src/drivetrain/config/environ.py")
    assert "TID251" in _ruff("import torch\n\nx = torch.distributed\n", "dropin/accelerate/accelerate/a.py")
    assert "TID251" not in _ruff("import os\n\nx = os.environ\n", "dropin/accelerate/accelerate/a.py")


LAYERS = "cli accelerator session training strategies launch data checkpoint tracking transforms precision".split()
LAYERS += "platforms runtime config core".split()
UNWANTED = [
    ("core", "import drivetrain.config", "Imports point down"),
    ("data", "import drivetrain.tracking", "Imports point down"),
    ("strategies/a", "import drivetrain.strategies.b", "No strategy knows"),
    ("config", "import torch", "start without torch"),
    ("training", "import transformers", "stands in for or serves"),
]


@pytest.mark.limit(300)
@pytest.mark.parametrize(("module", "line", "contract"), [("core", "import json", None), *UNWANTED])
def test_import_contracts_bite(tmp_path, module, line, contract):
    for name in LAYERS:
        _write(tmp_path / "drivetrain" / name / "__init__.py")
    for name in ("strategies", "platforms", "tracking"):
        for file in ("base", "a", "b"):
            _write(tmp_path / "drivetrain" / name / f"{file}.py")
    _write(tmp_path / "drivetrain" / "__init__.py")
    _write(tmp_path / "accelerate" / "__init__.py")
    target = tmp_path / "drivetrain" / module
    _write(target / "__init__.py" if target.is_dir() else target.with_suffix(".py"), line)
    command = [str(Path(sys.executable).parent / "lint-imports"), str(ROOT / ".importlinter"), "--no-cache"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    broken = [one for one in result.stdout.splitlines() if one.rstrip().endswith("BROKEN")]
    if contract is None:
        assert result.returncode == 0, result.stdout + result.stderr
    else:
        assert len(broken) == 1 and contract in broken[0], result.stdout + result.stderr


def _write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
