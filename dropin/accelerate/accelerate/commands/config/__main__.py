"""``python -m accelerate.commands.config``."""

import sys

from accelerate.commands.config import main

sys.exit(main())
