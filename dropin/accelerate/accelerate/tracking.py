"""Experiment trackers."""

from __future__ import annotations

from typing import Any

from drivetrain.tracking.base import Tracker, available_trackers, check_tracker_class, on_main_process, resolve
from drivetrain.tracking.tensorboard import TensorBoardTracker

from accelerate._names import attach
from accelerate.logging import get_logger

GeneralTracker, get_available_trackers = Tracker, available_trackers

LOGGER_TYPE_TO_CLASS: dict[str, type[Tracker]] = {"tensorboard": TensorBoardTracker}
"""The trackers that this version has, by the name that ``log_with`` knows them by."""

registered: dict[str, type[Tracker]] = {}
"""Classes that `register_tracker_class` was given, by name."""

logger = get_logger(__name__)


def filter_trackers(log_with: Any, logging_dir: Any = None) -> list[Any]:
    """What ``log_with`` asks for, checked: `LoggerType` members, names of other trackers, and instances.

    Raises:
        ConfigError: an unknown name, or a tracker that needs ``logging_dir`` without one.
        MissingDependency: the package of a tracker is not installed.
    """
    return resolve(log_with, logging_dir, registered)


def register_tracker_class(tracker_class: type[Tracker]) -> type[Tracker]:
    """Let ``log_with`` find ``tracker_class`` by its ``name`` from now on. Returns the class.

    Raises:
        ConfigError: it is no tracker class, or lacks ``name`` or ``requires_logging_directory``.
    """
    check_tracker_class(tracker_class)
    name = tracker_class.name
    if registered.get(name, tracker_class) is not tracker_class or name in LOGGER_TYPE_TO_CLASS:
        logger.warning("the tracker %r is known already; %s takes its place", name, tracker_class.__name__)
    registered[name] = tracker_class
    return tracker_class


__all__ = [
    "LOGGER_TYPE_TO_CLASS", "GeneralTracker", "TensorBoardTracker", "filter_trackers", "get_available_trackers",
    "on_main_process", "register_tracker_class",
]  # fmt: skip

__getattr__, __dir__ = attach(__name__)
