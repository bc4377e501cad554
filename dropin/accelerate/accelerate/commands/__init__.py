"""The commands ``accelerate ...``: those of drivetrain, under the names that scripts call."""

from accelerate._names import attach

__getattr__, __dir__ = attach(__name__)
