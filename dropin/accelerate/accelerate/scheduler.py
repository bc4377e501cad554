"""The learning-rate schedule that `prepare` returns."""

from accelerate._names import attach
from drivetrain.training.scheduler import PreparedScheduler as AcceleratedScheduler

__all__ = ["AcceleratedScheduler"]

__getattr__, __dir__ = attach(__name__)
