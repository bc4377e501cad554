"""What the agreement header costs: `gather` of a small tensor on two gloo ranks, over the plain torch call.

    python benchmarks/collectives.py [--rounds 2000]

Every collective that a script calls first compares one fixed-size header over all ranks, so that unequal shapes or a
missing rank are reported instead of aborting or hanging. This prints, in microseconds a call (median over blocks of
calls, the three interleaved): the plain `all_gather` (the floor), the header alone, and `accelerator.gather`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

BLOCK = 50  # calls timed together
WIDTH = 8  # float32 elements in the gathered tensor


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the header before a collective.")
    parser.add_argument("--rounds", type=int, default=2000, help="calls of each kind (default: 2000)")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        _measure(arguments.rounds)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, f"--rounds={arguments.rounds}"], env=environment, timeout=600).returncode


def _measure(rounds: int) -> None:
    import torch
    import torch.distributed as dist

    from drivetrain import Accelerator

    accelerator = Accelerator(cpu=True)
    comm = accelerator.session.world.comm
    x = torch.arange(WIDTH, dtype=torch.float32)
    room = [torch.empty_like(x) for _ in range(2)]
    calls: dict[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather(room, x),
        "header": lambda: comm.agree("gather", "float32[8]"),
        "gather": lambda: accelerator.gather(x),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(rounds // BLOCK + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(BLOCK):
                call()
            if block >= 2:  # the first blocks warm the sockets up
                times[name].append((time.perf_counter() - start) / BLOCK * 1e6)
    if accelerator.is_main_process:
        middle = {name: statistics.median(values) for name, values in times.items()}
        print(f"| call, {WIDTH} float32, 2 gloo ranks | us a call | over the floor |\n|---|---:|---:|")
        for name, value in middle.items():
            print(f"| {name} | {value:.0f} | {value / middle['all_gather']:.2f} |")
    accelerator.end_training()


if __name__ == "__main__":
    sys.exit(main())
