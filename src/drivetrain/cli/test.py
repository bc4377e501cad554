"""``test``: launch a short self-check with the config file in use."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def command(argv: Sequence[str], prog: str) -> int:
    """Run ``test``: all of ``launch``'s flags are taken, the script is ours. Returns the self-check's exit code."""
    from drivetrain.cli.launch import start
    from drivetrain.config import flags
    from drivetrain.launch import rank

    line = flags.read(argv, prog)
    if line.script is not None:
        from drivetrain.core.errors import ConfigError

        raise ConfigError(f"{prog} runs its own script, so {line.script!r} has no place here. Leave it out.")
    line.script = os.path.join(os.path.dirname(rank.__file__), "selfcheck.py")
    return start(line, prog)
