"""``accelerate test``."""

import sys

from accelerate._names import attach


def main() -> int:
    """Run the command with the arguments of this process. Returns the exit code."""
    from drivetrain.cli.main import main as run

    return run(["test", *sys.argv[1:]], prog="accelerate")


__getattr__, __dir__ = attach(__name__)

if __name__ == "__main__":
    sys.exit(main())
