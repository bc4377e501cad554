"""Pipeline-parallel inference, by name only in this version."""

from accelerate._names import attach

__getattr__, __dir__ = attach(__name__)
