"""The single strategy has no options of its own."""

OPTIONS: tuple[str, ...] = ()
"""Names of the options of `drivetrain.config.options` that this strategy reads."""
