"""One process: this process becomes the script."""

from __future__ import annotations

import os
import sys

from drivetrain.launch.base import Launcher, LaunchPlan, merged
from drivetrain.launch.handover import threads, variables, visibility

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain.config.resolve import Settings
    from drivetrain.launch.base import Command
    from drivetrain.launch.shape import Shape


class SingleLauncher(Launcher):
    """Replaces this process by the script, so that its output, signals and exit code are its own."""

    name = "single"

    def plan(self, shape: Shape, settings: Settings, command: Command, environ: Mapping[str, str]) -> LaunchPlan:
        """One command, with the settings in its environment."""
        env = {
            **variables(settings, environ),
            **visibility(settings, shape.device_kind),
            **threads(settings, environ, 1),
        }
        return LaunchPlan(command.argv(sys.executable), env, notes=shape.notes)

    def run(self, plan: LaunchPlan, settings: Settings, command: Command, environ: Mapping[str, str]) -> int:
        """Does not return: the script's exit code is this process's own.

        Raises:
            LaunchError: the program cannot be executed.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execvpe(plan.argv[0], plan.argv, merged(environ, plan.env))
        except OSError as error:
            from drivetrain.core.errors import LaunchError

            raise LaunchError(f"{plan.argv[0]} cannot be executed: {error.strerror}.") from None
