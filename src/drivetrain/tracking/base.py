"""The interface of an experiment tracker, and the hub through which one Accelerator feeds all of its trackers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from drivetrain.config.enums import LoggerType
from drivetrain.core import registry
from drivetrain.core.errors import ConfigError, MissingDependency, UsageError
from drivetrain.core.optional import installed
from drivetrain.core.tree import map_leaves
from drivetrain.runtime.log import get_logger, process_rank

REQUIRED = ("name", "requires_logging_directory", "tracker")
NO_CLASSES: Mapping[str, type[Tracker]] = MappingProxyType({})

# The order in which "all" lists what it finds.
KNOWN = (
    LoggerType.TENSORBOARD,
    LoggerType.WANDB,
    LoggerType.COMETML,
    LoggerType.AIM,
    LoggerType.MLFLOW,
    LoggerType.CLEARML,
    LoggerType.DVCLIVE,
    LoggerType.SWANLAB,
    LoggerType.TRACKIO,
)

logger = get_logger(__name__)


class IncompleteTracker(UsageError, NotImplementedError):
    """A tracker class lacks something that every tracker must have."""


def on_main_process(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run a tracker's method on rank 0 only while the tracker says ``main_process_only``; elsewhere return None."""

    @wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "main_process_only", False) and process_rank() != 0:
            return None
        return method(self, *args, **kwargs)

    return wrapper


class Tracker:
    """Writes what a run reports to one place. Subclass it for a place of your own.

    A subclass gives ``name``, ``requires_logging_directory`` and a property ``tracker`` (the library's own object), and
    overrides the four methods. ``__init__`` only keeps its arguments: it runs before the process group exists, so
    what touches ranks or the library belongs into `start`.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: bool = True
    if TYPE_CHECKING:  # declared, yet absent from the class at run time: `__init__` looks whether a subclass brought it

        @property
        def tracker(self) -> Any: ...

    packages: ClassVar[tuple[str, ...]] = ()
    """Import names of packages of which any one is enough to run this tracker. The first is what an error tells to
    install. Empty: needs none."""

    def __init__(self, _blank: bool = False) -> None:
        """Check that the class is complete.

        Raises:
            IncompleteTracker: a `NotImplementedError` that names everything missing.
        """
        if _blank:
            return
        # `dir` finds a property without running it: before `start` there may be no object for it to return.
        missing = [f"`{one}`" for one in REQUIRED if one not in dir(self)]
        if missing:
            raise IncompleteTracker(
                f"the tracker class {type(self).__name__} lacks {', '.join(missing)}. "
                "Define each of them in the class (`tracker` as a property)."
            )

    @classmethod
    def available(cls) -> bool:
        """Whether a package that this tracker can use is installed. Imports nothing."""
        return not cls.packages or any(installed(package) for package in cls.packages)

    def start(self) -> None:
        """Open the run. Called once, after the process group exists."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the run's settings (hyperparameters)."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Keep ``values`` (numbers, text, or dictionaries of them) of ``step``, whatever the caller counts by it.

        Further keywords go to the library's own call.
        """

    def finish(self) -> None:
        """Close the run; everything logged is safe when this returns."""


GeneralTracker = Tracker


def plain(data: Any) -> Any:
    """``data`` with every tensor and NumPy value, at any depth, as Python numbers or nested lists of them.

    A 0-d tensor becomes a number. Containers keep their type; whatever else is in them is left as it is.
    """
    return map_leaves(_plain_leaf, data, leaf=_is_array)


def check_tracker_class(cls: type) -> None:
    """Check a class that is to be known by its name.

    Raises:
        ConfigError: not a tracker class, or without ``name`` or ``requires_logging_directory``.
    """
    if not (isinstance(cls, type) and issubclass(cls, Tracker)):
        raise ConfigError(f"{cls!r} is not a subclass of GeneralTracker. Derive the tracker's class from it.")
    if not getattr(cls, "name", None):
        raise ConfigError(f"the tracker class {cls.__name__} has no `name`. Give it one: log_with finds it by that.")
    if not hasattr(cls, "requires_logging_directory"):
        raise ConfigError(
            f"the tracker class {cls.__name__} lacks `requires_logging_directory`. Set it to True or False."
        )


def available_trackers() -> list[LoggerType]:
    """The trackers that ``log_with="all"`` stands for: we have a file for it and its package is installed."""
    ours = registry.names("tracking")
    return [kind for kind in KNOWN if kind.value in ours and _class_of(kind.value, NO_CLASSES).available()]


def resolve(
    log_with: Any, logging_dir: str | os.PathLike[str] | None = None, extra: Mapping[str, type[Tracker]] = NO_CLASSES
) -> list[LoggerType | str | Tracker]:
    """What ``log_with`` asks for, checked: `LoggerType` members, other trackers' names as text, and instances.

    Args:
        log_with: None, one item, or a list of them: a `LoggerType` or its value, the name of any other tracker
            (``"jsonl"``, an entry point of the group ``drivetrain.tracking``, a key of ``extra``), or a `Tracker`.
            ``"all"`` stands for the given instances and every `LoggerType` that can run here.
        logging_dir: the folder for trackers that write files.
        extra: more tracker classes by name. They win over ours.

    Raises:
        ConfigError: an unknown name, or a tracker that needs ``logging_dir`` without one.
        MissingDependency: a tracker was asked for by name and its package is not installed.
    """
    if log_with is None:
        return []
    asked = list(log_with) if isinstance(log_with, list | tuple) else [log_with]
    if any(item is LoggerType.ALL or item == LoggerType.ALL.value for item in asked):
        return [*(item for item in asked if isinstance(item, Tracker)), *available_trackers()]
    out: list[LoggerType | str | Tracker] = []
    for item in asked:
        if isinstance(item, Tracker):
            out.append(item)
            continue
        kind = _known_name(item, extra)
        if kind not in out:
            cls = _class_of(str(kind), extra)
            _check_can_run(cls)
            _check_folder(cls, logging_dir)
            out.append(kind)
    return out


class TrackerHub:
    """The trackers of one Accelerator, and the rule that only the main process feeds them.

    Attributes:
        log_with: what the user asked for, as `resolve` returns it.
        trackers: those that run: filled by `init_trackers` on the main process, emptied by `finish`.
    """

    def __init__(
        self,
        log_with: Any = None,
        logging_dir: str | os.PathLike[str] | None = None,
        *,
        is_main: bool,
        extra: Mapping[str, type[Tracker]] = NO_CLASSES,
    ) -> None:
        """Check what is asked for; start nothing. See `resolve` for the arguments and what is raised."""
        self.logging_dir = logging_dir
        self.is_main = is_main
        self.log_with = resolve(log_with, logging_dir, extra)
        self.trackers: list[Tracker] = []
        self._extra = extra
        if log_with and not self.log_with:
            logger.warning(
                "log_with=%r was given, but no tracker's package is installed: nothing will be kept.", log_with
            )

    def init_trackers(
        self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: Mapping[str, dict] | None = None
    ) -> None:
        """Open a run called ``project_name`` in every tracker asked for. Does nothing off the main process.

        Args:
            project_name: the run's, or project's, name.
            config: settings to keep with the run.
            init_kwargs: further constructor arguments by tracker name. Instances that the user made take none.
        """
        if not self.is_main:
            return
        new = [
            item
            if isinstance(item, Tracker)
            else self._build(str(item), project_name, dict((init_kwargs or {}).get(str(item), {})))
            for item in self.log_with
        ]
        for tracker in new:
            tracker.start()
            self.trackers.append(tracker)  # only now: `finish` must not meet one that never started
        if config is not None:
            for tracker in new:
                tracker.store_init_configuration(config)

    def log(
        self, values: dict[str, Any], step: int | None = None, log_kwargs: Mapping[str, dict] | None = None
    ) -> None:
        """Hand ``values`` of ``step`` to every tracker. Does nothing off the main process.

        Args:
            values: numbers, text, 0-d tensors, or dictionaries of them, by name.
            step: what the caller counts.
            log_kwargs: further arguments for the tracker's own call, by tracker name.
        """
        if not self.is_main:
            return
        for tracker in self.trackers:
            tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The running tracker called ``name``; with ``unwrap`` the library's own object.

        Where none runs (every rank but the main one) a blank `Tracker`, whose methods do nothing.

        Raises:
            ConfigError: others run, but none with that name.
        """
        if not self.trackers:
            return Tracker(_blank=True)
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        running = ", ".join(tracker.name for tracker in self.trackers)
        raise ConfigError(f"no tracker called {name!r} runs. Running: {running}. Ask for it in log_with.")

    def finish(self) -> None:
        """Close every tracker, also when closing one of them fails; the failure is raised afterwards."""
        trackers, self.trackers = self.trackers, []
        with ExitStack() as stack:
            for tracker in reversed(trackers):
                stack.callback(tracker.finish)

    def _build(self, name: str, project_name: str, arguments: dict[str, Any]) -> Tracker:
        cls = _class_of(name, self._extra)
        if not cls.requires_logging_directory:
            return cls(project_name, **arguments)  # type: ignore[call-arg]
        _check_folder(cls, self.logging_dir)
        return cls(project_name, self.logging_dir, **arguments)  # type: ignore[call-arg]


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | np.generic)


def _plain_leaf(value: Any) -> Any:
    return value.detach().tolist() if isinstance(value, torch.Tensor) else value.tolist()


def _known_name(item: Any, extra: Mapping[str, type[Tracker]]) -> LoggerType | str:
    """The item as a `LoggerType`, or as the name of another tracker that exists."""
    if item in LoggerType:
        return LoggerType(item)
    others = [*extra, *(name for name in registry.names("tracking") if name not in LoggerType)]
    if isinstance(item, str) and item in others:
        return item
    raise ConfigError(
        f"log_with got {item!r}, which is no tracker. Use one of {LoggerType.list()}, "
        f"one of {sorted(others)}, or an instance of a GeneralTracker."
    )


def _class_of(name: str, extra: Mapping[str, type[Tracker]]) -> type[Tracker]:
    if name in extra:
        return extra[name]
    if name in LoggerType and name not in registry.names("tracking"):
        raise ConfigError(
            f"the tracker `{name}` is known by name, but this version of drivetrain has no tracker of that name yet. "
            f"Use one of {registry.names('tracking')}, or pass log_with an instance of a GeneralTracker of your own."
        )
    return registry.find("tracking", name, Tracker)


def _check_can_run(cls: type[Tracker]) -> None:
    if not cls.available():
        package = cls.packages[0]
        raise MissingDependency(
            f"the tracker `{cls.name}` needs the package `{package}`, which is not installed. "
            f"Run: pip install {package}"
        )


def _check_folder(cls: type[Tracker], logging_dir: str | os.PathLike[str] | None) -> None:
    if cls.requires_logging_directory and logging_dir is None:
        raise ConfigError(
            f"Logging with `{cls.name}` requires a `logging_dir`. "
            "Give the Accelerator a project_dir, or a ProjectConfiguration with a logging_dir."
        )
