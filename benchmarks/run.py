"""Run the shared benchmark cases under this project and under another library's interpreter, side by side.

    python benchmarks/run.py                                    # this project alone
    python benchmarks/run.py --incumbent OTHER/bin/python       # both, interleaved, in one run
    python benchmarks/run.py --cases step import --quick

The cases lie in a file that only does `import accelerate`; each measures the library and its floor (plain torch, plain
python, torchrun) in one process, so compare `ratio` and `overhead` rather than seconds of different days.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT.parent / "shared" / "bench" / "bench.py"
CASES = ("import", "launch", "launch_torch", "step")
Figures = dict[str, dict[str, list[float]]]  # case -> measure -> one value a repetition


def main() -> int:
    arguments = _arguments()
    pythons = {"ours": sys.executable}
    if arguments.incumbent:
        pythons["incumbent"] = arguments.incumbent
    found: dict[str, Figures] = {who: {} for who in pythons}
    for repetition in range(arguments.repeat):
        for case in arguments.cases:
            for who, python in pythons.items():
                print(f"# {repetition + 1}/{arguments.repeat} {case}: {who}", file=sys.stderr, flush=True)
                _measure(found[who], python, arguments.bench, case, arguments.quick)
    medians = {who: _medians(figures) for who, figures in found.items()}
    print(_table(medians))
    print(_targets(medians))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Benchmarks of this project beside those of another library.")
    parser.add_argument("--incumbent", metavar="PYTHON", help="interpreter of an environment with the other library")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help=f"default: {' '.join(CASES)}")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case; the median counts (default: 3)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds inside each case")
    parser.add_argument(
        "--bench", type=Path, default=BENCH, help="file with the cases (default: ../shared/bench/bench.py)"
    )
    arguments = parser.parse_args()
    if not arguments.bench.exists():
        parser.error(f"there is no {arguments.bench}; name the file with the cases by --bench")
    return arguments


def _measure(figures: Figures, python: str, bench: Path, case: str, quick: bool) -> None:
    """One run of one case in a fresh interpreter; adds what it printed to the figures."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [python, str(bench), case, *(["--quick"] if quick else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            for name, value in row.items():
                if isinstance(value, (int, float)):
                    figures.setdefault(case, {}).setdefault(name, []).append(float(value))
                elif name != "case":
                    print(f"# {case}: {name}: {value}", file=sys.stderr)


def _medians(figures: Figures) -> dict[tuple[str, str], float]:
    return {
        (case, name): statistics.median(values) for case, named in figures.items() for name, values in named.items()
    }


def _table(medians: dict[str, dict[tuple[str, str], float]]) -> str:
    keys = list(dict.fromkeys(key for figures in medians.values() for key in figures))
    lines = ["| case | measure | " + " | ".join(medians) + " |", "|---|---" + "|---:" * len(medians) + "|"]
    for case, name in keys:
        cells = [_number(figures.get((case, name))) for figures in medians.values()]
        lines.append(f"| {case} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _targets(medians: dict[str, dict[tuple[str, str], float]]) -> str:
    """What is asked of this project, and whether this run reached it."""
    ours, other = medians["ours"], medians.get("incumbent", {})
    asked = (
        ("import over torch's own, s", ours.get(("import", "overhead_s")), 0.15),
        (
            "one process, first line, times python",
            _ratio(ours, "launch", "one_first_line_s", "python_first_line_s"),
            3.0,
        ),
        ("two ranks, whole run, times torchrun", ours.get(("launch_torch", "ratio")), 0.8),
        ("step overhead, times incumbent", _over(ours, other, ("step", "overhead_us")), 0.1),
    )
    lines = ["", "| asked of us | measured | at most | reached |", "|---|---:|---:|---|"]
    for what, value, most in asked:
        if value is not None:
            lines.append(f"| {what} | {_number(value)} | {most:g} | {'yes' if value <= most else 'NO'} |")
    return "\n".join(lines)


def _ratio(figures: dict[tuple[str, str], float], case: str, above: str, below: str) -> float | None:
    if (case, above) not in figures or (case, below) not in figures:
        return None
    return figures[case, above] / figures[case, below]


def _over(
    ours: dict[tuple[str, str], float], other: dict[tuple[str, str], float], key: tuple[str, str]
) -> float | None:
    return ours[key] / other[key] if key in ours and key in other else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
