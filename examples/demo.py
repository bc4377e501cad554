"""Train examples/digits.py on one process and on two, and show that both learn the same: `make demo`.

Prints both loss curves, their largest difference and both test accuracies, and draws the curves as a picture. Ends with
1 if the curves differ by more than TOLERANCE or an accuracy is below ENOUGH.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

DIGITS = Path(__file__).resolve().parent / "digits.py"
PROCESSES = (1, 2)
TOLERANCE = 1e-4  # of the loss; float32 sums are rounded differently on two processes, and training amplifies that
ENOUGH = 0.96  # test accuracy
SECONDS = 300  # longest time for one run


def run(processes: int, output_dir: Path) -> dict:
    """Launch digits.py on this number of processes; returns its result with the seconds that it took."""
    shutil.rmtree(output_dir, ignore_errors=True)
    command = [sys.executable, "-m", "drivetrain", "launch", "--cpu", "--num_processes", str(processes), str(DIGITS)]
    command += ["--output_dir", str(output_dir)]
    print(f"\n$ {' '.join(['drivetrain', *command[3:]])}", flush=True)
    start = time.monotonic()
    # One thread a process, as the launcher gives each of several: this network is too small to gain from more.
    code = subprocess.run(command, timeout=SECONDS, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode
    if code != 0:
        raise SystemExit(f"The run on {processes} process(es) ended with exit code {code}.")
    result = json.loads((output_dir / "result.json").read_text())
    if result["processes"] != processes:
        raise SystemExit(f"Asked for {processes} process(es), but the script saw {result['processes']}.")
    return {**result, "seconds": time.monotonic() - start}


def print_table(one: list[float], two: list[float], rows: int = 12) -> None:
    print("\n  step   loss on 1 process   loss on 2 processes   difference")
    last = len(one) - 1
    for step in sorted({round(row * last / (rows - 1)) for row in range(rows)}):
        print(f"{step + 1:6d}   {one[step]:17.6f}   {two[step]:19.6f}   {abs(one[step] - two[step]):10.1e}")


def draw(one: list[float], two: list[float], path: Path) -> None:
    """Both curves in one picture, and their difference below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = range(1, len(one) + 1)
    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(8, 6), height_ratios=[3, 1], layout="constrained")
    upper.plot(steps, one, color="tab:orange", linewidth=4, alpha=0.6, label="1 process")
    upper.plot(steps, two, color="tab:blue", linewidth=1.2, linestyle="--", label="2 processes")
    upper.set(yscale="log", ylabel="training loss", title="Digits: the same training on one process and on two")
    upper.legend()
    lower.plot(steps, [abs(a - b) for a, b in zip(one, two, strict=True)], ".", color="tab:gray", markersize=4)
    lower.axhline(TOLERANCE, color="tab:red", linewidth=1, linestyle=":", label="allowed")
    lower.set_yscale("log", nonpositive="mask")
    lower.set(ylabel="difference\n(where not 0)", xlabel="optimizer step")
    lower.legend()
    for panel in (upper, lower):
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def judge(results: list[dict]) -> list[str]:
    """What is wrong with the results; empty if all is well."""
    one, two = (result["loss"] for result in results)
    wrong = []
    if len(one) != len(two):
        wrong.append(f"one process took {len(one)} steps and two took {len(two)}")
    elif not largest_difference(one, two) <= TOLERANCE:
        wrong.append("the loss curves differ by more than is allowed")
    wrong += [
        f"the accuracy on {result['processes']} process(es) is too low"
        for result in results
        if not result["accuracy"] >= ENOUGH
    ]
    return wrong


def largest_difference(one: list[float], two: list[float]) -> float:
    differences = [abs(a - b) for a, b in zip(one, two, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("demo_output"))
    output_dir = parser.parse_args().output_dir

    results = [run(processes, output_dir / f"processes_{processes}") for processes in PROCESSES]
    one, two = (result["loss"] for result in results)
    if len(one) == len(two):
        print_table(one, two)
        picture = output_dir / "loss_curves.png"
        draw(one, two, picture)
        print(f"\nlargest difference of the two curves: {largest_difference(one, two):.1e} (allowed: {TOLERANCE:g})")
        print(f"picture of both curves: {picture}")
    for result in results:
        print(
            f"{result['processes']} process(es): test accuracy {result['accuracy']:.4f} (at least: {ENOUGH}), "
            f"{result['seconds']:.1f} s"
        )
    wrong = judge(results)
    for sentence in wrong:
        print(f"FAILED: {sentence}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
