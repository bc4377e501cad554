"""DDP is configured in code, by `DistributedDataParallelKwargs`; nothing of it comes from the command line."""

OPTIONS: tuple[str, ...] = ()
"""Names of the options of `drivetrain.config.options` that this strategy reads."""
