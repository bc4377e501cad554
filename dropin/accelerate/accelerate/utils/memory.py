"""Batches that fit into memory, and memory given back."""

from drivetrain.training.oom import clear_device_cache as clear_device_cache
from drivetrain.training.oom import find_executable_batch_size as find_executable_batch_size
from drivetrain.training.oom import release_memory as release_memory
from drivetrain.training.oom import should_reduce_batch_size as should_reduce_batch_size

from accelerate._names import attach

__getattr__, __dir__ = attach(__name__)
