"""The pages say what is there: generated ones are current, links lead somewhere, named commands exist."""

import re
from pathlib import Path

import pytest

from ranks import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def _name(path):
    return path.relative_to(ROOT).as_posix()


def test_the_reference_is_what_the_generator_writes():
    result = run_script(["python", ROOT / "docs" / "generate.py", "--check"], timeout=60)
    assert result.returncode == 0, f"run `make docs`\n{result.output}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
    assert named <= targets


def test_every_page_is_reachable_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
        todo += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert {_name(page) for page in PAGES} <= {_name(page) for page in seen}


def test_methods_that_the_pages_name_exist():
    from drivetrain import Accelerator

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"\baccelerator\.([a-z]\w*)", text)) - {"py", "main"}
    assert len(named) > 15
    assert sorted(name for name in named if not hasattr(Accelerator, name)) == []
