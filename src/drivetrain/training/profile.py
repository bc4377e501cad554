"""Profiles of a training loop, one Chrome trace a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from drivetrain.config.handlers import ProfileKwargs
from drivetrain.core.errors import ConfigError

TRACE_NAME = "profile_{rank}.json"
ACTIVITIES = ("cpu", "cuda", "xpu", "mtia", "hpu")


def build_profiler(options: ProfileKwargs) -> torch.profiler.profile:
    """A profiler with these options, not started.

    Raises:
        ConfigError: an activity is unknown, or this torch does not have it.
    """
    return torch.profiler.profile(
        activities=_activities(options.activities),
        schedule=torch.profiler.schedule(**options.schedule_option) if options.schedule_option else None,
        on_trace_ready=options.on_trace_ready,
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
        with_flops=options.with_flops,
        with_modules=options.with_modules,
    )


def _activities(names: list[str] | None) -> list[torch.profiler.ProfilerActivity] | None:
    if names is None:
        return None
    found = []
    for name in names:
        activity = getattr(torch.profiler.ProfilerActivity, name.upper(), None) if name in ACTIVITIES else None
        if activity is None:
            have = [n for n in ACTIVITIES if hasattr(torch.profiler.ProfilerActivity, n.upper())]
            raise ConfigError(f"activities holds {name!r}, which this torch cannot profile. It can: {', '.join(have)}.")
        found.append(activity)
    return found


@contextmanager
def profiled(options: ProfileKwargs, rank: int) -> Iterator[torch.profiler.profile]:
    """Profile the body; write ``profile_<rank>.json`` into the options' folder, if they name one."""
    with build_profiler(options) as profiler:
        yield profiler
    if options.output_trace_dir is not None:
        folder = Path(options.output_trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / TRACE_NAME.format(rank=rank)))
