"""Start a function on several processes, from a notebook or from a test."""

from accelerate._names import attach

__getattr__, __dir__ = attach(__name__)
