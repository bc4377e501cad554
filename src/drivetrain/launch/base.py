"""What every launcher is: a pure plan of commands and environments, and a way to run it. No torch here."""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain.config.resolve import Settings
    from drivetrain.launch.shape import Shape


class Command:
    """What the user wants to run: a script, a module (``-m``) or a program (``--no_python``), and its arguments."""

    __slots__ = ("script", "args", "module", "no_python")

    def __init__(self, script: str, args: list[str], *, module: bool = False, no_python: bool = False) -> None:
        self.script = script
        self.args = args
        self.module = module
        self.no_python = no_python

    def argv(self, python: str) -> list[str]:
        """The command line that runs it in a process of its own."""
        if self.no_python:
            return [self.script, *self.args]
        return [python, *(["-m"] if self.module else []), self.script, *self.args]


class LaunchPlan:
    """What would be started. Nothing of it has happened yet.

    Attributes:
        argv: command line of the process, or of each rank.
        env: variables set on top of the launcher's own environment; None removes one.
        ranks: one mapping of further variables for each local rank; empty where there is only one process, or where
            another program starts the ranks.
        notes: lines for the user about choices made.
        port: port for rank 0 on this machine that the user asked for, 0 for any; None where no port is needed.
    """

    __slots__ = ("argv", "env", "ranks", "notes", "port")

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str | None],
        ranks: list[dict[str, str]] | None = None,
        *,
        notes: list[str] | None = None,
        port: int | None = None,
    ) -> None:
        self.argv = argv
        self.env = env
        self.ranks = ranks or []
        self.notes = notes or []
        self.port = port

    def text(self) -> str:
        """The plan for a person to read, as ``--dry_run`` prints it."""
        from shlex import join, quote

        lines = [join(self.argv)]
        for name, value in sorted(self.env.items()):
            lines.append(f"  unset {name}" if value is None else f"  {name}={quote(value)}")
        if self.port is not None:
            lines.append(f"  MASTER_PORT={self.port or 'any free port'}")
        for number, variables in enumerate(self.ranks):
            lines.append(f"rank {number}: " + " ".join(f"{name}={quote(value)}" for name, value in variables.items()))
        return "\n".join(lines)


class Launcher(ABC):
    """A way of starting ranks."""

    name: str

    @abstractmethod
    def plan(self, shape: Shape, settings: Settings, command: Command, environ: Mapping[str, str]) -> LaunchPlan:
        """What to start; touches nothing."""

    @abstractmethod
    def run(self, plan: LaunchPlan, settings: Settings, command: Command, environ: Mapping[str, str]) -> int:
        """Start it, wait for the end, and return the exit code for the launcher: the script's own, 128 + signal."""


def merged(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """``environ`` with the changes made; a value of None removes the variable."""
    env = dict(environ)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env
