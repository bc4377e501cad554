"""Where a loader stands: the epoch that comes next, and the batch at which it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.core.errors import InputError


@dataclass
class Position:
    """Shared by a loader and those that `skip_first_batches` makes of it: whichever is read takes the next epoch."""

    epoch: int = 0
    """The epoch of the next iteration."""
    batch: int = 0
    """Batches of it that have been handed out already, on each rank."""
    given: bool = False
    """Whether the user has set the epoch, instead of letting it count on."""

    def take(self) -> Start:
        """The start of an iteration; the one after it is the next epoch, from its start."""
        start = Start(self.epoch, self.batch, self.given)
        self.epoch, self.batch, self.given = self.epoch + 1, 0, False
        return start

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is ``epoch``; a restored position inside another epoch is dropped."""
        if epoch != self.epoch:
            self.batch = 0
        self.epoch, self.given = epoch, True

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state that `PreparedLoader.state_dict` gave.

        Raises:
            InputError: ``state`` has no usable epoch and batch.
        """
        epoch, batch = state.get("epoch"), state.get("batch")
        if not (isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and batch >= 0):
            raise InputError(
                f"this is not the state of a loader: epoch={epoch!r}, batch={batch!r}; both are numbers from 0 on. "
                "Give load_state_dict what state_dict returned."
            )
        self.epoch, self.batch, self.given = epoch, batch, False


@dataclass(frozen=True)
class Start:
    """One iteration: its epoch, the batches to leave out, and whether the user chose the epoch."""

    epoch: int
    batch: int
    given: bool
