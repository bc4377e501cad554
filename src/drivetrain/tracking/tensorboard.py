"""TensorBoard: scalars, text, groups of scalars and images as event files in the logging folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from drivetrain.core.errors import MissingDependency
from drivetrain.core.optional import installed
from drivetrain.runtime.log import Once, get_logger
from drivetrain.tracking.base import Tracker, on_main_process, plain

logger = get_logger(__name__)


class TensorBoardTracker(Tracker):
    """Writes to ``<logging_dir>/<run_name>``. Further keywords go to ``SummaryWriter``."""

    name = "tensorboard"
    requires_logging_directory = True
    packages = ("tensorboard", "tensorboardX")

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = os.path.join(logging_dir, run_name)
        self._arguments = kwargs
        self._once = Once()

    @on_main_process
    def start(self) -> None:
        self.writer = _summary_writer()(self.logging_dir, **self._arguments)

    @property
    def tracker(self) -> Any:
        """The ``SummaryWriter``."""
        return self.writer

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Show the settings on TensorBoard's hyperparameter page, and keep them whole in a file ``hparams.yml``.

        That page knows only numbers, flags and text, so anything else (a list, a path) is shown there as its text.
        """
        import yaml

        self.writer.add_hparams({key: _shown(value) for key, value in plain(values).items()}, metric_dict={})
        self.writer.flush()
        folder = Path(self.logging_dir, str(time.time()))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            text = yaml.dump(plain(values))
        except Exception:
            logger.error("The settings of the run %r cannot be written as YAML.", self.run_name)
            raise
        (folder / "hparams.yml").write_text(text)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Numbers become scalars, text becomes text, a dictionary becomes a group of scalars. Of anything else one
        warning says that TensorBoard has no place for it. Further keywords go to the writer's own call."""
        for key, value in plain(values).items():
            if isinstance(value, int | float):
                self.writer.add_scalar(key, value, global_step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.add_text(key, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(key, value, global_step=step, **kwargs)
            else:
                self._once.warning(
                    logger,
                    "TensorBoard shows numbers, text and dictionaries of numbers: %r is a %s and is left out.",
                    key,
                    type(value).__name__,
                    key=key,
                )
        self.writer.flush()

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Each value is a batch of images as ``SummaryWriter.add_images`` takes it: [N, C, H, W] unless the keyword
        ``dataformats`` says otherwise; floats in 0..1 or uint8."""
        for key, value in values.items():
            self.writer.add_images(key, value, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.writer.close()


def _summary_writer() -> Any:
    """The ``SummaryWriter`` of torch, or that of tensorboardX where tensorboard itself is not installed."""
    if installed("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter
    if installed("tensorboardX"):
        import tensorboardX  # type: ignore[import-not-found]

        return tensorboardX.SummaryWriter
    raise MissingDependency(
        "the tracker `tensorboard` needs the package `tensorboard`, which is not installed. "
        "Run: pip install tensorboard"
    )


def _shown(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
