"""``accelerate <command>``."""

import sys


def main() -> int:
    """Run the command that the arguments of this process name. Returns the exit code."""
    from drivetrain.cli.main import main as run

    return run(prog="accelerate")


if __name__ == "__main__":
    sys.exit(main())
