"""Entry point: which command was asked for."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMANDS = {
    "config": "Write a config file: by questions, by --set, or the default one.",
    "env": "Print versions, hardware and the config file in use.",
    "launch": "Start a training script on one or more processes.",
    "test": "Run a short self-check with the config file in use.",
}
HELP_FLAGS = ("-h", "--help")


def main(argv: Sequence[str] | None = None, prog: str = "drivetrain") -> int:
    """Run one command and return its exit code: 2 for a wrong command line, 1 for a wrong setting or a failed run.

    Args:
        argv: arguments after the program's name; those of this process if None.
        prog: name of the program in messages.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in HELP_FLAGS:
        _parser(prog).print_help()
        return 0 if arguments else 1
    name = arguments[0]
    if name == "--version":
        from drivetrain import __version__

        print(f"drivetrain {__version__}")
        return 0
    if name not in COMMANDS:
        from drivetrain.config.nearest import nearest

        print(
            f"{prog}: there is no command {name!r}.{nearest(name, COMMANDS)} Commands: {', '.join(COMMANDS)}.",
            file=sys.stderr,
        )
        return 2
    return guarded(_command(name), arguments[1:], f"{prog} {name}")


def guarded(command: Callable[[Sequence[str], str], int], arguments: Sequence[str], prog: str) -> int:
    """Run a command; an error raised on purpose becomes one line on stderr and exit code 1."""
    from drivetrain.core.errors import DrivetrainError

    try:
        return command(arguments, prog)
    except DrivetrainError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1


def _command(name: str) -> Callable[[Sequence[str], str], int]:
    if name == "launch":
        from drivetrain.cli.launch import command
    elif name == "config":
        from drivetrain.cli.config import command
    elif name == "env":
        from drivetrain.cli.env import command
    else:
        from drivetrain.cli.test import command
    return command


def _parser(prog: str):  # noqa: ANN202 - argparse is imported only here
    import argparse

    parser = argparse.ArgumentParser(prog=prog, usage=f"{prog} <command> [<args>]", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="command", title="commands")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.epilog = f"`{prog} <command> --help` tells more."
    return parser
