"""Ranks started and supervised by torch's elastic agent: for several machines, and for the agent's own options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time

from drivetrain.core.errors import LaunchError
from drivetrain.launch import ports
from drivetrain.launch.base import Command, Launcher, LaunchPlan, merged
from drivetrain.launch.handover import threads, variables, visibility
from drivetrain.launch.start import RANK_FILE, Event, Starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain.config.resolve import Settings
    from drivetrain.launch.shape import Shape
    from drivetrain.launch.streams import Relay

REPORTS = "{reports}"
"""Stands in the plan for the folder in which failing ranks leave their tracebacks."""
PORT = "{port}"
"""Stands in the plan for a free port, where none was asked for and there is one machine only."""
_ROOT_CAUSE = re.compile(r"Root Cause.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


class MachinesLauncher(Launcher):
    """Runs ``torch.distributed.run`` in a child process, so that this one need not import torch."""

    name = "machines"

    def plan(self, shape: Shape, settings: Settings, command: Command, environ: Mapping[str, str]) -> LaunchPlan:
        """The agent's command line; the ranks start through our bootstrap, which reports how a rank failed."""
        host = settings["main_process_ip"] or ports.LOOPBACK
        port = settings["main_process_port"] or PORT
        backend = settings["rdzv_backend"]
        agent = {
            "nnodes": shape.machines,
            "nproc-per-node": shape.local,
            "node-rank": shape.machine_rank,
            "rdzv-backend": backend,
            "max-restarts": settings["max_restarts"],
            "monitor-interval": settings["monitor_interval"],
            "role": settings["role"],
            "tee": settings["tee"],
        }
        if settings["same_network"]:
            agent["master-addr"], agent["master-port"] = host, port
        else:
            agent["rdzv-endpoint"] = f"{host}:{port}"
        agent.update({name: value for name, value in _optional(settings).items() if value})
        mode = "program" if command.no_python else "module" if command.module else "script"
        argv = [sys.executable, RANK_FILE, str(os.getpid()), "-", "0", "module", "torch.distributed.run"]
        argv += [f"--{name}={value}" for name, value in agent.items()]
        argv += [RANK_FILE, "-", REPORTS, "-", mode, command.script, *command.args]
        env = {
            **variables(settings, environ),
            **visibility(settings, shape.device_kind),
            **threads(settings, environ, shape.local),
        }
        if backend == "c10d":  # a store shared with the agent does not survive a restart of the ranks
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return LaunchPlan(argv, env, notes=shape.notes, port=port if isinstance(port, int) else 0)

    def run(self, plan: LaunchPlan, settings: Settings, command: Command, environ: Mapping[str, str]) -> int:
        """Run the agent to its end, then print the first failing rank's traceback of this machine.

        Raises:
            LaunchError: the port of machine 0 is taken.
        """
        from drivetrain.launch.streams import Relay, Screen
        from drivetrain.launch.watch import Watcher

        def say(text: str) -> None:
            if not settings["quiet"]:
                print(f"drivetrain: {text}", file=sys.stderr, flush=True)

        host, port = settings["main_process_ip"] or ports.LOOPBACK, plan.port or ports.free_port()
        if not settings["machine_rank"] and not ports.is_free(port, ""):
            raise LaunchError(
                f"port {port} is taken on this machine, which is machine 0. Give all machines another "
                "--main_process_port."
            )
        interface = ports.interface_towards(host, port)
        if interface is not None and not environ.get("GLOO_SOCKET_IFNAME"):
            plan.env["GLOO_SOCKET_IFNAME"] = interface
        screen = Screen()
        relays = [[Relay(fd, screen, keep=fd == 2) for fd in (1, 2)]]
        starter = AgentStarter()
        with tempfile.TemporaryDirectory(prefix="drivetrain-") as reports:
            plan.argv = [reports if part == REPORTS else part.replace(PORT, str(port)) for part in plan.argv]
            try:
                watcher = Watcher(starter, relays, screen, settings["grace"], say, tells=False)
                starter.start(plan, command, environ, relays)
                for relay in relays[0]:
                    relay.started()
                code = watcher.run()
            finally:
                starter.close()
                for relay in relays[0]:
                    relay.close()
            stopped = watcher.received is not None
            return code if stopped or code == 0 else self._tell(reports, code, relays[0][1], say)

    def _tell(self, folder: str, code: int, err: Relay, say: Callable[[str], None]) -> int:
        """Print how the first rank of this machine failed, and return its exit code."""
        first = _first_report(folder)
        if first is None:
            found = _ROOT_CAUSE.search(err.tail.decode(errors="replace"))
            code = int(found.group(1)) if found else code
            return code if code >= 0 else 128 - code
        if first["text"]:
            say(f"rank {first['rank']} failed first on this machine; its traceback:")
            print(first["text"], end="", file=sys.stderr, flush=True)
        else:
            say(f"rank {first['rank']} ended with exit code {first['code']}.")
        return first["code"]


class AgentStarter(Starter):
    """Starts the agent, which is one process to us."""

    def __init__(self) -> None:
        super().__init__()
        self._agent: subprocess.Popen | None = None
        self._told = False

    def start(
        self, plan: LaunchPlan, command: Command, environ: Mapping[str, str], channels: list[list[Relay]]
    ) -> None:
        """Start it in a session of its own."""
        out, err = channels[0]
        self._agent = subprocess.Popen(
            plan.argv,
            env=merged(environ, plan.env),
            stdin=subprocess.DEVNULL,
            stdout=out.writer,
            stderr=err.writer,
            start_new_session=True,
        )

    def events(self) -> list[Event]:
        """That it has started, and that it has ended."""
        assert self._agent is not None
        found = [] if self._told else [Event("started", 0, pid=self._agent.pid)]
        self._told = True
        code = self._agent.poll()
        if code is not None:
            found.append(Event("exit", 0, code=code, at=time.monotonic()))
        return found


def _optional(settings: Settings) -> dict[str, str | None]:
    return {"rdzv-conf": settings["rdzv_conf"], "log-dir": settings["log_dir"]}


def _first_report(folder: str) -> dict | None:
    """What the rank that failed first left behind."""
    reports = []
    for name in os.listdir(folder):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                reports.append(json.load(file))
    return min(reports, key=lambda report: report["at"], default=None)
