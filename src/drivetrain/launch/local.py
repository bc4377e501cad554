"""Several ranks on this machine, started and watched by this process."""

from __future__ import annotations

import os
import sys

from drivetrain.core.errors import LaunchError
from drivetrain.launch import ports
from drivetrain.launch.base import Command, Launcher, LaunchPlan
from drivetrain.launch.handover import threads, variables, visibility

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain.config.resolve import Settings
    from drivetrain.launch.shape import Shape


class LocalLauncher(Launcher):
    """Starts the ranks, passes on their output and the signals to it, and ends all when one fails.

    Ranks have no standard input (there is one keyboard and several of them), and each is in a session of its own with
    the processes it starts.
    """

    name = "local"

    def __init__(self) -> None:
        self._device_kind = ""

    def plan(self, shape: Shape, settings: Settings, command: Command, environ: Mapping[str, str]) -> LaunchPlan:
        """One command for all ranks, and each rank's place."""
        number = shape.local
        env = {
            **variables(settings, environ),
            **visibility(settings, shape.device_kind),
            **threads(settings, environ, number),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": ports.LOOPBACK,
        }
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
        self._device_kind = shape.device_kind
        return LaunchPlan(
            command.argv(sys.executable), env, ranks, notes=shape.notes, port=settings["main_process_port"] or 0
        )

    def run(self, plan: LaunchPlan, settings: Settings, command: Command, environ: Mapping[str, str]) -> int:
        """Start the ranks and watch them to their end.

        Raises:
            LaunchError: the script does not exist, or the ranks cannot be started.
        """
        if not command.module and not command.no_python and not os.path.exists(command.script):
            raise LaunchError(f"there is no script {command.script}.")

        def say(text: str) -> None:
            if not settings["quiet"]:
                print(f"drivetrain: {text}", file=sys.stderr, flush=True)

        restarts = settings["max_restarts"]
        for attempt in range(restarts + 1):
            plan.env["MASTER_PORT"] = str(self._port(plan.port or 0, say))
            plan.env["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
            code, stopped = self._once(plan, settings, command, environ, say)
            if code == 0 or stopped or attempt == restarts:
                return code
            say(f"starting all ranks again (restart {attempt + 1} of {restarts})")
        raise AssertionError("unreachable")

    def _once(
        self,
        plan: LaunchPlan,
        settings: Settings,
        command: Command,
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> tuple[int, bool]:
        """One run of all ranks: the exit code, and whether it was ended by a signal to this process."""
        from drivetrain.launch.start import choose
        from drivetrain.launch.streams import Relay, Screen
        from drivetrain.launch.watch import Watcher

        interface = ports.loopback_interface()
        if interface is not None and not environ.get("GLOO_SOCKET_IFNAME"):
            plan.env["GLOO_SOCKET_IFNAME"] = interface
        screen = Screen()
        relays = [[Relay(fd, screen, keep=fd == 2) for fd in (1, 2)] for _ in plan.ranks]
        starter = choose(settings["start_method"], command, self._device_kind)
        try:
            sys.stdout.flush()
            watcher = Watcher(starter, relays, screen, settings["grace"], say)
            starter.start(plan, command, environ, relays)
            for pair in relays:
                for relay in pair:
                    relay.started()
            return watcher.run(), watcher.received is not None
        finally:
            starter.close()
            for pair in relays:
                for relay in pair:
                    relay.close()

    def _port(self, wanted: int, say: Callable[[str], None]) -> int:
        if wanted and ports.is_free(wanted):
            return wanted
        port = ports.free_port()
        if wanted:
            say(f"port {wanted} is taken on this machine; using {port}")
        return port
