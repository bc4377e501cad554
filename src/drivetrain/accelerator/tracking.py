"""The part of the `Accelerator` that reports: experiment trackers, and the end of a training."""

from __future__ import annotations

from typing import Any

from drivetrain.config.enums import LoggerType
from drivetrain.config.handlers import ProjectConfiguration
from drivetrain.tracking.base import Tracker, TrackerHub


class Tracking:
    """Hands what a loop reports to every tracker, from the main process."""

    _hub: TrackerHub
    project_configuration: ProjectConfiguration

    @property
    def log_with(self) -> list[LoggerType | str | Tracker]:
        """The trackers asked for."""
        return self._hub.log_with

    @property
    def trackers(self) -> list[Tracker]:
        """The trackers that run; empty off the main process and before `init_trackers`."""
        return self._hub.trackers

    @trackers.setter
    def trackers(self, trackers: list[Tracker]) -> None:
        self._hub.trackers = trackers

    @property
    def project_dir(self) -> str | None:
        """Folder of the project."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        """Folder for trackers that write files."""
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """Number of the next automatically named checkpoint."""
        return self.project_configuration.iteration

    def init_trackers(
        self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: dict[str, dict] | None = None
    ) -> None:
        """Start the trackers asked for by ``log_with``, for a run called ``project_name``, on the main process.

        Args:
            config: hyperparameters, noted at the start of the run.
            init_kwargs: further arguments for each tracker, by its name.
        """
        self._hub.init_trackers(project_name, config, init_kwargs)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, dict] | None = None) -> None:
        """Report ``values`` of ``step`` to every tracker, from the main process.

        Args:
            values: numbers, 0-d tensors, text, or mappings of numbers, by name.
            log_kwargs: further arguments for each tracker, by its name.
        """
        self._hub.log(values, step, log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The running tracker called ``name``; ``unwrap`` gives the object of its own library.

        Off the main process, where none run, a tracker that does nothing.

        Raises:
            ConfigError: trackers run, but none of that name.
        """
        return self._hub.get_tracker(name, unwrap)

    def end_training(self) -> None:
        """Finish the trackers. The ranks stay connected until the process ends, so an evaluation may still follow."""
        self._hub.finish()
