"""The learning-rate schedule that `prepare` returns."""

from drivetrain.training.scheduler import PreparedScheduler as AcceleratedScheduler

from accelerate._names import attach

__all__ = ["AcceleratedScheduler"]

__getattr__, __dir__ = attach(__name__)
