"""``python -m drivetrain``."""

import sys

from drivetrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
