"""The command line of drivetrain; nothing here imports torch."""
