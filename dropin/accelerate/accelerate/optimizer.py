"""The optimizer that `prepare` returns."""

from drivetrain.training.optimizer import PreparedOptimizer as AcceleratedOptimizer
from drivetrain.training.optimizer import move_to_device as move_to_device

from accelerate._names import attach

__all__ = ["AcceleratedOptimizer", "move_to_device"]

__getattr__, __dir__ = attach(__name__)
