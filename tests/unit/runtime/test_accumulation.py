"""Windows of micro-batches: when they end, and whose loader ends them."""

from __future__ import annotations

import gc
import logging

import pytest

from drivetrain.core.errors import UsageError
from drivetrain.runtime.accumulation import Accumulation, Loop, Loops, Window, check_one_kind


class Model:
    pass


class Reader(Loop):
    """A loop over batches of the given numbers of rows, as a prepared loader behaves."""

    def __init__(self, loops: Loops, rows: list[int]) -> None:
        self.loops, self.rows = loops, rows

    def __iter__(self):
        self.loops.enter(self)
        self.end_of_data, self.full_rows = False, None
        try:
            for i, rows in enumerate(self.rows):
                self.end_of_data = i == len(self.rows) - 1
                self.batch_rows = rows
                self.full_rows = max(rows, self.full_rows or 0)
                self.loops.handed_out(self)
                yield rows
        finally:
            self.loops.leave(self)


def _flags(accumulation: Accumulation, rows: list[int], cuts=lambda rows: 1, model=None) -> list[bool]:
    key = (model,) if model is not None else ()
    return [accumulation.advance(key) for batch in Reader(accumulation.loops, rows) for _ in range(cuts(batch))]


def test_window_ends_by_count_and_with_the_data():
    accumulation, steps = Accumulation(2), []
    for _ in Reader(accumulation.loops, [1] * 5):
        accumulation.advance()
        steps.append((accumulation.sync, accumulation.current.step))
    assert steps == [(False, 1), (True, 2), (False, 3), (True, 4), (True, 0)]


def test_window_may_go_on_into_the_next_epoch():
    accumulation = Accumulation(2, sync_with_dataloader=False)
    assert _flags(accumulation, [1] * 5) == [False, True, False, True, False]
    assert _flags(accumulation, [1] * 5) == [True, False, True, False, True]


@pytest.mark.parametrize("epochs", [1, 2])
def test_micro_batches_of_the_last_batch_make_one_window(epochs):
    accumulation = Accumulation(4)
    for _ in range(epochs):
        assert _flags(accumulation, [4, 4], cuts=lambda rows: rows) == [False, False, False, True] * 2


def test_a_smaller_last_batch_is_cut_in_fewer_micro_batches():
    accumulation = Accumulation(4)
    assert _flags(accumulation, [8, 8, 3], cuts=lambda rows: -(-rows // 2)) == [False, False, False, True] * 2 + [
        False,
        True,
    ]


def test_fewer_micro_batches_than_expected_are_said_and_not_lost(caplog):
    accumulation = Accumulation(4)
    with caplog.at_level(logging.WARNING):
        flags = _flags(accumulation, [4, 4], cuts=lambda rows: 4 if accumulation.loops.active.batches_out % 2 else 2)
        assert flags == [False, False, False, True, False, False]
        assert _flags(accumulation, [4, 4]) == [False, True]
    assert accumulation.current.count == 4  # two of the old epoch, two of the new
    assert "joined" in caplog.text


def test_more_micro_batches_than_expected_are_said(caplog):
    accumulation = Accumulation(4)
    with caplog.at_level(logging.WARNING):
        assert _flags(accumulation, [4], cuts=lambda rows: 2) == [True, True]
    assert "sync_with_dataloader=False" in caplog.text


def test_two_models_keep_their_own_windows():
    accumulation, a, b = Accumulation(2), Model(), Model()
    flags = []
    for _ in range(4):
        flags.append((accumulation.advance((a,)), accumulation.advance((b,))))
    assert flags == [(False, False), (True, True)] * 2


def test_a_model_that_is_gone_leaves_no_window():
    accumulation, model = Accumulation(2), Model()
    accumulation.advance((model,))
    del model
    accumulation.clear()
    gc.collect()
    assert not accumulation._windows
    assert accumulation.advance((Model(),)) is False


def test_divisor_is_the_length_of_the_window():
    accumulation, divisors = Accumulation(4), []
    for _ in Reader(accumulation.loops, [1] * 5):
        accumulation.advance()
        divisors.append(accumulation.divisor(accumulation.current))
        accumulation.leave()
    assert divisors == [4, 4, 4, 4, 1]
    assert accumulation.divisor(accumulation.current) == 4  # outside of a micro-batch


def _leave_by_break(inner):
    for i, _ in enumerate(inner):
        if i == 1:
            break


def _leave_by_error(inner):
    try:
        for _ in inner:
            raise KeyError
    except KeyError as error:
        return error  # keeps the traceback, and so the iterator, alive
    return None


def _leave_on_the_last_batch(inner):
    for _ in inner:
        if inner.end_of_data:
            break


@pytest.mark.parametrize("leave", [_leave_by_break, _leave_by_error, _leave_on_the_last_batch, list])
@pytest.mark.parametrize("first", [True, False])
def test_an_inner_loop_leaves_no_trace(leave, first):
    accumulation, kept, flags = Accumulation(2), [], []
    inner = Reader(accumulation.loops, [1, 1, 1])
    for i, _ in enumerate(Reader(accumulation.loops, [1] * 5)):
        if first and i == 1:
            kept.append(leave(inner))
        if not (first and leave is _leave_by_error and i == 1):
            flags.append(accumulation.advance())
        else:
            flags.append(accumulation.advance())
        if not first and i == 1:
            kept.append(leave(inner))
    assert flags == [False, True, False, True, True]
    assert accumulation.loops.active is None


def test_interleaved_loops_both_count():
    loops = Loops()
    a, b = Reader(loops, [1, 1]), Reader(loops, [2, 2])
    seen = []
    for _ in zip(a, b, strict=True):
        seen.append(loops.active is b)
    assert seen == [True, True]
    assert loops.active is None


def test_mixing_means_and_sums_is_refused():
    window = Window([])
    window.applied = 2
    with pytest.raises(UsageError, match="weight"):
        check_one_kind(window, 3)
    window.weight = 1
    with pytest.raises(UsageError, match="weight"):
        check_one_kind(window, None)


def _micro_batch(accumulation, *, backward=True, step=True, fails=False):
    """What `accumulate` and the prepared objects do in one micro-batch."""
    accumulation.advance()
    window = accumulation.current
    window.reached_backward = backward
    window.stepped = step and window.sync
    accumulation.leave(failed=fails)
    return window.sync


def test_a_micro_batch_that_failed_before_backward_does_not_count():
    accumulation = Accumulation(2)
    _micro_batch(accumulation)
    _micro_batch(accumulation, backward=False, step=False, fails=True)
    assert accumulation.current.count == 1 and not accumulation.sync
    assert _micro_batch(accumulation) and accumulation.current.count == 2


def test_a_first_micro_batch_that_failed_leaves_no_window():
    accumulation = Accumulation(2)
    _micro_batch(accumulation, backward=False, step=False, fails=True)
    assert accumulation.sync
    assert [_micro_batch(accumulation) for _ in range(4)] == [False, True, False, True]


def test_gradients_of_a_window_that_was_not_stepped_stay_in_it():
    accumulation = Accumulation(2)
    _micro_batch(accumulation)
    _micro_batch(accumulation, step=False, fails=True)
    accumulation.advance()
    assert accumulation.sync and accumulation.divisor(accumulation.current) == 3


def test_an_error_after_the_step_ends_the_window_all_the_same():
    accumulation = Accumulation(1)
    _micro_batch(accumulation, fails=True)
    assert _micro_batch(accumulation) and accumulation.current.count == 1
