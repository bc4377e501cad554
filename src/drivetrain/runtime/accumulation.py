"""Windows of micro-batches: which backward ends an optimizer step, and by what its gradients are divided."""

from __future__ import annotations

import weakref
from typing import Any

from drivetrain.core.errors import UsageError
from drivetrain.runtime.log import Once, get_logger


class Loop:
    """What the accumulation has to know of a loader that is being read. Prepared loaders are loops."""

    end_of_data: bool = False
    """Whether the batch handed out last is the last one of this epoch on this rank."""
    remainder: int = -1
    """Real samples in the last global batch; 0 when it is full, -1 when nobody knows."""
    num_valid: int | None = None
    """Real, not padding, samples of this batch on this rank."""
    batch_rows: int | None = None
    """Samples of this batch on this rank, padding included."""
    full_rows: int | None = None
    """The largest `batch_rows` of this epoch so far."""
    batches_out: int = 0
    """Batches handed out in this object's life; tells one batch from the next."""


class Loops:
    """The loaders that are being read now, the innermost last. Holds none of them alive."""

    def __init__(self) -> None:
        self.refs: list[weakref.ref[Loop]] = []
        """The open loops; loaders look at the last one."""

    def enter(self, loop: Loop) -> None:
        """``loop`` starts an epoch."""
        self.leave(loop)
        self.refs.append(weakref.ref(loop))

    def handed_out(self, loop: Loop) -> None:
        """``loop`` gives a batch to the user now.

        Loops above it were opened inside its body, so they have ended, however they were left: a `break` or an
        exception whose traceback is still alive keeps an iterator open for ever.
        """
        loop.batches_out += 1
        if self.refs and self.refs[-1]() is loop:
            return
        at = self._find(loop)
        if at is None:
            self.refs.append(weakref.ref(loop))
        else:
            del self.refs[at + 1 :]

    def leave(self, loop: Loop) -> None:
        """``loop`` has ended; so have those that were opened inside it."""
        at = self._find(loop)
        if at is not None:
            del self.refs[at:]

    @property
    def active(self) -> Loop | None:
        """The loop whose batch the user holds, or None outside of loops."""
        while self.refs:
            loop = self.refs[-1]()
            if loop is not None:
                return loop
            self.refs.pop()
        return None

    @property
    def open(self) -> list[Loop]:
        """All loops that are being read, the innermost last."""
        return [loop for ref in self.refs if (loop := ref()) is not None]

    def _find(self, loop: Loop) -> int | None:
        return next((i for i, ref in enumerate(self.refs) if ref() is loop), None)


class Window:
    """The micro-batches between two optimizer steps of one model, or of several that step together."""

    __slots__ = (
        "applied",
        "batch",
        "calls",
        "calls_of_full_batch",
        "count",
        "loop",
        "models",
        "open_end",
        "reached_backward",
        "step",
        "stepped",
        "sync",
        "weight",
    )

    def __init__(self, models: list[weakref.ref[Any]]) -> None:
        self.models = models
        self.count = 0
        """Micro-batches in this window so far, the current one included."""
        self.step = 0
        """Micro-batches since the last end of data."""
        self.sync = True
        """Whether the current micro-batch ends the window."""
        self.applied: Any = None
        """What the gradients that are accumulated now have been divided by; None: there are none yet."""
        self.weight: Any = None
        """Sum of the weights given to `backward` in this window on this rank; None: none was given."""
        self.loop: weakref.ref[Loop] | None = None
        self.batch = -1
        self.calls = 0
        """Micro-batches cut from the loader batch that is being worked on."""
        self.calls_of_full_batch: int | None = None
        self.open_end = False
        """Whether micro-batches of a loader's last batch have come in."""
        self.reached_backward = False
        """Whether the current micro-batch has given gradients."""
        self.stepped = False
        """Whether an optimizer has moved in the current micro-batch."""

    def undo(self) -> None:
        """The current micro-batch was ended by an exception."""
        if not self.reached_backward:
            self.count -= 1
            self.step = max(0, self.step - 1)
            self.sync = self.count == 0
        elif not self.stepped:
            self.sync = False


class Accumulation:
    """The windows of one Accelerator, and the loops that end them early."""

    def __init__(self, steps: int = 1, *, sync_with_dataloader: bool = True, sync_each_batch: bool = False) -> None:
        self.steps = steps
        """Micro-batches per optimizer step, per rank."""
        self.sync_with_dataloader = sync_with_dataloader
        self.sync_each_batch = sync_each_batch
        self.loops = Loops()
        self.joined = False
        """Whether some ranks may have run out of batches and only answer the reduction of the others' gradients."""
        self.alone = False
        """Whether there is one rank only, so that nothing is reduced."""
        self._once = Once()
        self.clear()

    def clear(self) -> None:
        """Forget all windows and the models they belong to."""
        self._windows: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Window]] = weakref.WeakKeyDictionary()
        self._anonymous = Window([])
        self.current = self._anonymous
        self._last: tuple[weakref.ref[Any], Window] | None = None  # nearly every call is for the model of the last one
        self.inside = False
        """Whether the caller is within a micro-batch; outside, a loss is divided by `steps` and nothing is rescaled."""

    @property
    def sync(self) -> bool:
        """Whether the current micro-batch ends its window: gradients are reduced, the optimizer moves."""
        return self.current.sync

    @sync.setter
    def sync(self, value: bool) -> None:
        self.current.sync = value

    def advance(self, models: tuple[Any, ...] = ()) -> bool:
        """Start the next micro-batch of ``models`` (a key, not touched). Returns whether it ends the window."""
        window = self._window(models)
        self.current, self.inside = window, True
        if window.sync:
            window.count, window.applied, window.weight = 0, None, None
        window.reached_backward = window.stepped = False
        window.count += 1
        window.step += 1
        refs = self.loops.refs
        loop = None
        if refs and self.sync_with_dataloader:
            loop = refs[-1]()  # what `active` looks at first, without the call
            loop = self.loops.active if loop is None else loop
        if loop is not None and self._ends_data(window, loop):
            window.sync, window.step = True, 0
        else:
            window.sync = window.count >= self.steps
        return window.sync

    def leave(self, outer: Window | None = None, *, failed: bool = False) -> None:
        """The micro-batch is over; what comes now belongs to ``outer``, the micro-batch around it, or to no window.

        Args:
            failed: whether an exception ended it. A micro-batch that gave no gradients then does not count; one
                that did, without the optimizer having moved, leaves its window open: no gradient counts twice.
        """
        if failed:
            self.current.undo()
        if outer is None:
            self.inside = False
        else:
            self.current = outer

    def divisor(self, window: Window) -> int:
        """What a plain mean loss of this micro-batch is divided by: the window's own length once that is known."""
        return window.count if self.inside and window.sync else self.steps

    def _window(self, models: tuple[Any, ...]) -> Window:
        if not models:
            return self._anonymous
        single = len(models) == 1
        if single and self._last is not None and self._last[0]() is models[0]:
            return self._last[1]
        others = tuple(id(m) for m in models[1:])
        family = self._windows.get(models[0])
        if family is None:
            family = self._windows[models[0]] = {}
        window = family.get(others)
        if window is None or any(ref() is None for ref in window.models):
            window = family[others] = Window([weakref.ref(m) for m in models])
        if single:
            self._last = (window.models[0], window)
        return window

    def _ends_data(self, window: Window, loop: Loop) -> bool:
        """Whether this is the last micro-batch of the loader's last batch.

        A loop may cut a loader batch in micro-batches. How many it cuts from the last one is told by the earlier
        ones: as many rows a micro-batch. Without an earlier one, a batch is one micro-batch.
        """
        same_loop = window.loop is not None and window.loop() is loop
        if not same_loop or (window.open_end and window.batch != loop.batches_out):
            self._new_batch(window, loop, same_loop)
        elif window.batch != loop.batches_out:
            if window.calls > (window.calls_of_full_batch or 0):
                window.calls_of_full_batch = window.calls
            window.batch, window.calls = loop.batches_out, 0
        window.calls += 1
        if not loop.end_of_data:
            return False
        window.open_end = True
        expected = _expected_calls(window.calls_of_full_batch, loop)
        if window.calls > expected:
            self._once.warning(
                get_logger(__name__),
                f"the last batch of a loader was cut in more micro-batches than expected ({expected}): each further "
                f"one is a window of its own. To count windows across loader ends, give "
                f"GradientAccumulationPlugin(num_steps={self.steps}, sync_with_dataloader=False).",
            )
        return window.calls >= expected

    def _new_batch(self, window: Window, loop: Loop, same_loop: bool) -> None:
        if window.open_end and not window.sync:
            self._once.warning(
                get_logger(__name__),
                "the last batch of a loader was cut in fewer micro-batches than the earlier ones let expect, so the "
                "last window of the epoch was not stepped: its gradients joined the first window of the next epoch.",
            )
        window.open_end = False
        if not same_loop:
            window.loop, window.calls_of_full_batch = weakref.ref(loop), None
        elif window.calls:
            window.calls_of_full_batch = max(window.calls, window.calls_of_full_batch or 0)
        window.batch, window.calls = loop.batches_out, 0


def _expected_calls(calls_of_full_batch: int | None, loop: Loop) -> int:
    if calls_of_full_batch is None:
        return 1
    if not loop.batch_rows or not loop.full_rows:
        return calls_of_full_batch
    rows_of_one = -(-loop.full_rows // calls_of_full_batch)
    return -(-loop.batch_rows // rows_of_one)


def check_one_kind(window: Window, weight: Any) -> None:
    """Refuse a window that mixes weighted sums with plain means.

    Raises:
        UsageError: gradients of the other kind are in the window already.
    """
    if window.applied is not None and (weight is None) != (window.weight is None):
        raise UsageError(
            "one accumulation window got backward(loss) and backward(loss, weight=...). A mean and a weighted sum "
            "cannot be added: give a weight to each backward of the window, or to none."
        )
