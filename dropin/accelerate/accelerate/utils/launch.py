"""The parts that a launcher is made of, by name only in this version."""

from accelerate._names import attach

__getattr__, __dir__ = attach(__name__)
