"""Ranks started and supervised by torch's elastic agent: for several machines, and for the agent's own options."""

from __future__ import annotations

import json
import math
import os
import re
import signal
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
    from drivetrain.launch.link import Link
    from drivetrain.launch.shape import Shape
    from drivetrain.launch.streams import Relay

REPORTS = "{reports}"
"""Stands in the plan for the folder in which failing ranks leave their tracebacks."""
PORT = "{port}"
"""Stands in the plan for the port, where there is one machine only: the one that was asked for, or a free one."""
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: \d+ \(pid: \d+\)")
"""What torch's agent logs at once when a rank has failed."""
AFTER_FAILURE = 4.0
"""Seconds the agent has to end its ranks when one has failed: by itself it waits minutes for the other machines."""
AFTER_DEATH = 3.0
"""Seconds the agent has when a rank of another machine has failed."""


class MachinesLauncher(Launcher):
    """Runs ``torch.distributed.run`` in a child process, so that this one need not import torch."""

    name = "machines"

    def plan(self, shape: Shape, settings: Settings, command: Command, environ: Mapping[str, str]) -> LaunchPlan:
        """The agent's command line; the ranks start through our bootstrap, which reports how a rank failed."""
        host = settings["main_process_ip"] or ports.LOOPBACK
        wanted = settings["main_process_port"] or 0
        port = wanted if shape.machines > 1 else PORT
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
        env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(settings["grace"]))
        return LaunchPlan(argv, env, notes=shape.notes, port=wanted)

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

        host, port = settings["main_process_ip"] or ports.LOOPBACK, _port(plan.port or 0, settings, say)
        interface = ports.interface_towards(host, port)
        if interface is not None and not environ.get("GLOO_SOCKET_IFNAME"):
            plan.env["GLOO_SOCKET_IFNAME"] = interface
        screen = Screen()
        relays = [[Relay(fd, screen, keep=fd == 2) for fd in (1, 2)]]
        one_try = not settings["max_restarts"]
        starter = AgentStarter(relays[0][1], ends_early=one_try)
        if settings["num_machines"] > 1 and one_try:
            from drivetrain.launch.link import Link

            starter.link = Link(host, port, settings["machine_rank"] or 0, starter.wake, say)
        with tempfile.TemporaryDirectory(prefix="drivetrain-") as reports:
            plan.argv = [reports if part == REPORTS else part.replace(PORT, str(port)) for part in plan.argv]
            try:
                starter.reports = reports
                watcher = Watcher(starter, relays, screen, settings["grace"], say, tells=False)
                starter.start(plan, command, environ, relays)
                for relay in relays[0]:
                    relay.started()
                code = watcher.run()
            finally:
                starter.hang_up()
                starter.close()
                for relay in relays[0]:
                    relay.close()
            if code == 0:
                return 0
            if watcher.received is not None:  # what the first rank made of the signal; the agent itself ends with 1
                first = _first_report(reports)
                return 128 + watcher.received if first is None else first["code"]
            if starter.elsewhere is not None:
                say("a rank failed on another machine; its launcher has the traceback.")
                return starter.elsewhere
            return self._tell(reports, code, relays[0][1], say)

    def _tell(self, folder: str, code: int, err: Relay, say: Callable[[str], None]) -> int:
        """Print how the first rank of this machine failed, and return its exit code."""
        first = _first_report(folder)
        if first is None:
            found = _FAILED.search(err.tail.decode(errors="replace"))
            code = int(found.group(1)) if found else code
            return code if code >= 0 else 128 - code
        if first["text"]:
            say(f"rank {first['rank']} failed first on this machine; its traceback:")
            print(first["text"], end="", file=sys.stderr, flush=True)
        else:
            say(f"rank {first['rank']} ended with exit code {first['code']}.")
        return first["code"]


class AgentStarter(Starter):
    """Starts the agent, which is one process to us, and ends it where it would wait too long.

    Attributes:
        link: the line to the launchers of the other machines, if there are any.
        elsewhere: exit code of a rank of another machine that failed first.
        reports: folder in which failing ranks leave their reports.
    """

    def __init__(self, err: Relay, *, ends_early: bool) -> None:
        super().__init__()
        self.link: Link | None = None
        self.elsewhere: int | None = None
        self.reports = ""
        self._err, self._ends_early = err, ends_early
        self._agent: subprocess.Popen | None = None
        self._told = False
        self._kill_at: float | None = None

    @property
    def wake(self) -> int:
        """A descriptor to write to when there is something to look at."""
        return self._report_writer

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
        self._drain()
        found = [] if self._told else [Event("started", 0, pid=self._agent.pid)]
        self._told = True
        code = self._agent.poll()
        if code is not None:
            found.append(Event("exit", 0, code=code, at=time.monotonic()))
        elif self._ends_early:
            self._end_early(self._agent)
        return found

    def hang_up(self) -> None:
        """Tell the other launchers how this machine ended."""
        if self.link is not None:
            failed = self._agent is None or self._agent.poll() != 0
            self.link.tell("failed 1" if failed else "done")
            self.link = None

    def _end_early(self, agent: subprocess.Popen) -> None:
        """End the agent, and with it its ranks, soon after a rank has failed, here or on another machine."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                os.killpg(agent.pid, signal.SIGKILL)  # the ranks ask the kernel to die with it
        elif (code := self._failed_here()) is not None:
            self._kill_at = now + AFTER_FAILURE
            if self.link is not None:
                self.link.tell(f"failed {code if code >= 0 else 128 - code}")
                self.link = None
        elif self.link is not None and self.link.verdict is not None:
            self.elsewhere = self.link.verdict
            self._kill_at = now + AFTER_DEATH
            agent.terminate()

    def _failed_here(self) -> int | None:
        """The exit code of a rank of this machine that has failed; None if none has."""
        first = _first_report(self.reports) if self.reports else None
        if first is not None:
            return int(first["code"])
        found = _FAILED.search(self._err.tail.decode(errors="replace"))
        return int(found.group(1)) if found else None

    def _drain(self) -> None:
        try:
            while os.read(self.report, 64):
                pass
        except BlockingIOError:
            pass


def _port(wanted: int, settings: Settings, say: Callable[[str], None]) -> int:
    if settings["machine_rank"] or (wanted and ports.is_free(wanted, "")):
        return wanted
    if settings["num_machines"] > 1:
        raise LaunchError(
            f"port {wanted} is taken on this machine, which is machine 0. Give all machines another "
            "--main_process_port."
        )
    port = ports.free_port()
    if wanted:
        say(f"port {wanted} is taken on this machine; using {port}")
    return port


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
