"""The learning-rate schedule the user holds: it moves when its optimizer has moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch.optim.lr_scheduler import ReduceLROnPlateau

from drivetrain.runtime.accumulation import Accumulation

Unit = Literal["optimizer_step", "process"]


class PreparedScheduler:
    """Wraps `.scheduler`. Whatever is not defined here is the inner schedule's.

    One call of `step` is one step of the schedule per optimizer step (``unit="optimizer_step"``), or as many as there
    are ranks (``unit="process"``: a schedule written for the number of batches of one process then ends in time).
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Any,
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        unit: Unit = "optimizer_step",
        num_processes: int = 1,
        accumulation: Accumulation | None = None,
    ) -> None:
        """
        Args:
            scheduler: the user's.
            optimizers: the one, or those, that it moves with.
            step_with_optimizer: False: every call is a step of the schedule.
            split_batches: whether the loaders split one batch over the ranks; the unit is then the optimizer step.
            num_processes: steps of a call when ``unit`` is "process".
        """
        self.scheduler = scheduler
        self.optimizers: Sequence[Any] = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
        self.split_batches = split_batches
        self.step_with_optimizer = step_with_optimizer
        self._accumulation = accumulation if accumulation is not None else Accumulation()
        # A plateau counts evaluations, which are the same on every rank, not samples.
        counts_processes = unit == "process" and not split_batches and not isinstance(scheduler, ReduceLROnPlateau)
        self.steps_per_call = num_processes if counts_processes else 1
        """Steps of the schedule that one call is."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move the schedule if the optimizer has moved: not inside a window, not after a skipped step."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self._accumulation.current.sync:
            return
        for optimizer in self.optimizers:
            if getattr(optimizer, "step_was_skipped", False):
                return
        for _ in range(self.steps_per_call):
            total = getattr(self.scheduler, "total_steps", None)
            if self.steps_per_call > 1 and total is not None and self.scheduler.last_epoch + 1 >= total:
                return  # several steps a call may not fit into a schedule of a fixed length
            self.scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if "scheduler" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["scheduler"], name)

    def get_last_lr(self) -> list[float]:
        """The rates set last, one a parameter group."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """State of the inner schedule."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state of the inner schedule."""
        self.scheduler.load_state_dict(state_dict)

    def get_lr(self) -> list[float]:
        """See the inner schedule's."""
        return self.scheduler.get_lr()

    def print_lr(self, *args: Any, **kwargs: Any) -> None:
        """See the inner schedule's."""
        self.scheduler.print_lr(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scheduler!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_accumulation"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.setdefault("_accumulation", Accumulation())
