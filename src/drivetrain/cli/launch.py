"""``launch``: read the command line, resolve the settings, choose a launcher, start."""

from __future__ import annotations

import sys

from drivetrain.config import environ as env
from drivetrain.config import flags
from drivetrain.config.gather import gather
from drivetrain.launch.base import Command
from drivetrain.launch.shape import Shape, shape_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain.config.flags import CommandLine
    from drivetrain.config.resolve import Settings
    from drivetrain.launch.base import Launcher
    from drivetrain.launch.devices import Devices

# What only torch's agent does, so it starts the ranks on one machine too.
AGENT_ONLY = ("log_dir", "rdzv_conf")


def command(argv: Sequence[str], prog: str) -> int:
    """Run ``launch``; with one process this process becomes the script and never returns.

    Raises:
        ConfigError: a setting is wrong, or the run cannot be started here.
        LaunchError: the ranks could not be started.
    """
    return start(flags.read(argv, prog), prog)


def start(line: CommandLine, prog: str) -> int:
    """Start what a read command line asks for; see `command`."""
    settings, path = gather(line.values)
    if path is not None and not settings["quiet"]:
        print(f"{prog}: using config file {path}", file=sys.stderr)
    if settings["show_config"]:
        from drivetrain.cli.show import table

        print(table(settings))
        return 0
    if line.script is None:
        print(f"usage: {prog} [options] training_script ...", file=sys.stderr)
        print(f"{prog}: error: no training script is given. See {prog} --help.", file=sys.stderr)
        return 2
    shape = shape_of(settings, _devices)
    if shape.cpu and not settings["cpu"]:
        settings = settings.with_values({"cpu": True}, "no accelerator found")
    target = Command(line.script, line.script_args, module=settings["module"], no_python=settings["no_python"])
    environ = env.snapshot()
    launcher = choose(shape, settings)
    plan = launcher.plan(shape, settings, target, environ)
    if settings["dry_run"]:
        print(plan.text())
        return 0
    if not settings["quiet"]:
        for note in plan.notes:
            print(f"{prog}: {note}", file=sys.stderr)
    return launcher.run(plan, settings, target, environ)


def choose(shape: Shape, settings: Settings) -> Launcher:
    """The launcher for ranks that are placed like this."""
    if shape.machines > 1 or (shape.processes > 1 and any(settings[name] for name in AGENT_ONLY)):
        from drivetrain.launch.machines import MachinesLauncher

        return MachinesLauncher()
    if shape.processes > 1:
        from drivetrain.launch.local import LocalLauncher

        return LocalLauncher()
    from drivetrain.launch.single import SingleLauncher

    return SingleLauncher()


def _devices() -> Devices:
    from drivetrain.launch.devices import visible

    return visible(env.snapshot())
