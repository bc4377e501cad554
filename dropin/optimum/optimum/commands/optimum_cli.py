"""``optimum-cli <command>``: says which commands this version has, and runs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

COMMANDS = {"env": "Print versions and hardware, for a bug report."}
LATER = {
    "export": "exporting models",
    "onnxruntime": "optimising and quantising exported models",
    "neuron": "compiling for AWS Neuron",
    "openvino": "compiling with OpenVINO",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 2 for a wrong command line, 1 for a command that is not there yet.

    Args:
        argv: arguments after the program's name; those of this process if None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else 1
    name, rest = arguments[0], arguments[1:]
    if name in LATER:
        print(
            f"optimum-cli {name} is not available in this version of drivetrain ({LATER[name]} comes later). "
            f"Commands: {', '.join(COMMANDS)}.",
            file=sys.stderr,
        )
        return 1
    if name not in COMMANDS:
        print(f"optimum-cli: there is no command {name!r}. Commands: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    from drivetrain.cli.main import main as run

    return run([name, *rest], prog="optimum-cli")


def _help() -> str:
    commands = "\n".join(f"  {name:<12} {text}" for name, text in COMMANDS.items())
    return f"usage: optimum-cli <command> [<args>]\n\ncommands:\n{commands}\n\nNot in this version: {', '.join(LATER)}."


if __name__ == "__main__":
    sys.exit(main())
