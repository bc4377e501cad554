"""The prepared optimizer and schedule, without any Accelerator."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from drivetrain.core.errors import ConfigError
from drivetrain.runtime.accumulation import Accumulation
from drivetrain.training.optimizer import PreparedOptimizer
from drivetrain.training.scheduler import PreparedScheduler


def _made(kind=torch.optim.SGD, **kwargs):
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    return weight, kind([weight], lr=0.5, **kwargs)


def test_nothing_moves_inside_a_window():
    weight, inner = _made()
    accumulation = Accumulation(2)
    optimizer = PreparedOptimizer(inner, accumulation=accumulation)
    fired = []
    optimizer.register_step_post_hook(lambda *args: fired.append(1))
    accumulation.advance()
    optimizer.step()
    optimizer.zero_grad()
    assert weight.item() == 1.0 and weight.grad is not None and not fired
    accumulation.advance()
    optimizer.step()
    optimizer.zero_grad()
    assert weight.item() == 0.5 and weight.grad is None and fired == [1]


def test_closure_loss_is_returned_and_not_computed_inside_a_window():
    weight, inner = _made(torch.optim.LBFGS, max_iter=2)
    accumulation = Accumulation(2)
    optimizer = PreparedOptimizer(inner, accumulation=accumulation)
    calls = []

    def closure():
        calls.append(1)
        inner.zero_grad()
        loss = ((weight * 2) ** 2).sum()
        loss.backward()
        return loss

    accumulation.advance()
    assert optimizer.step(closure) is None and not calls
    accumulation.advance()
    assert optimizer.step(closure).item() == 4.0 and calls


def test_attributes_are_those_of_the_inner_one():
    _, inner = _made(momentum=0.9)
    inner.note = "mine"
    optimizer = PreparedOptimizer(inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert (
        optimizer.note == "mine"
        and optimizer.param_groups is inner.param_groups
        and optimizer.defaults["momentum"] == 0.9
    )
    optimizer.param_groups[0]["lr"] = 0.25
    assert inner.param_groups[0]["lr"] == 0.25
    with pytest.raises(AttributeError):
        _ = optimizer.missing
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(inner.param_groups) == 2


def test_zero_grad_of_an_optimizer_with_fewer_arguments():
    class Own(torch.optim.SGD):
        def zero_grad(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.zero_()

    weight, inner = _made(Own)
    optimizer = PreparedOptimizer(inner)
    optimizer.zero_grad()
    assert weight.grad.item() == 0
    with pytest.raises(ConfigError, match="set_to_none"):
        optimizer.zero_grad(set_to_none=True)


def test_pickle_keeps_the_inner_optimizer():
    _, inner = _made()
    other = pickle.loads(pickle.dumps(PreparedOptimizer(inner)))
    assert other.param_groups[0]["lr"] == 0.5
    other.step()


@pytest.mark.parametrize("holder", ["outer", "inner"])
def test_modes_of_schedule_free_optimizers_reach_them(holder):
    class ScheduleFree(torch.optim.SGD):
        mode = "train"

        def eval(self):
            self.mode = "eval"

    _, free = _made(ScheduleFree)
    optimizer = PreparedOptimizer(free if holder == "outer" else PreparedOptimizer(free))
    optimizer.eval()
    assert free.mode == "eval"
    optimizer.train()


def _schedule(unit="optimizer_step", num_processes=4, gamma=0.5, **kwargs):
    _, inner = _made()
    scheduler = PreparedScheduler(
        torch.optim.lr_scheduler.StepLR(inner, 1, gamma), inner, unit=unit, num_processes=num_processes, **kwargs
    )
    inner.step()
    return inner, scheduler


def test_a_call_is_one_step_or_one_for_each_process():
    for unit, split, expected in [
        ("optimizer_step", False, 0.25),
        ("process", False, 0.03125),
        ("process", True, 0.25),
    ]:
        _, scheduler = _schedule(unit, split_batches=split)
        scheduler.step()
        assert scheduler.get_last_lr() == [expected], (unit, split)


def test_a_schedule_waits_for_the_window_and_for_a_real_step():
    _, inner = _made()
    accumulation = Accumulation(2)
    optimizer = PreparedOptimizer(inner, accumulation=accumulation)
    scheduler = PreparedScheduler(torch.optim.lr_scheduler.StepLR(inner, 1, 0.5), optimizer, accumulation=accumulation)
    accumulation.advance()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]
    accumulation.advance()
    optimizer.step()
    optimizer._skipped = True
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]
    optimizer._skipped = False
    scheduler.step()
    assert scheduler.get_last_lr() == [0.25] and scheduler.last_epoch == 1 and scheduler.step_size == 1


def test_plateau_and_fixed_length_schedules_do_not_run_away():
    _, inner = _made()
    plateau = PreparedScheduler(
        torch.optim.lr_scheduler.ReduceLROnPlateau(inner, patience=3, factor=0.1),
        inner,
        unit="process",
        num_processes=4,
    )
    rates = []
    for _ in range(6):
        plateau.step(1.0)
        rates.append(inner.param_groups[0]["lr"])
    assert rates == pytest.approx([0.5] * 4 + [0.05] * 2)
    _, inner = _made(momentum=0.9)
    cycle = PreparedScheduler(
        torch.optim.lr_scheduler.OneCycleLR(inner, max_lr=1.0, total_steps=10), inner, unit="process", num_processes=4
    )
    for _ in range(10):
        inner.step()
        cycle.step()
    assert cycle.last_epoch == 9 and cycle.get_last_lr()[0] < 1e-3


def test_a_step_too_many_of_a_plain_schedule_is_an_error_as_in_torch():
    _, inner = _made(momentum=0.9)
    cycle = PreparedScheduler(torch.optim.lr_scheduler.OneCycleLR(inner, max_lr=1.0, total_steps=2), inner)
    with pytest.raises(ValueError, match="Tried to step"):
        for _ in range(4):
            inner.step()
            cycle.step()


def test_without_the_tie_every_call_is_a_step():
    _, inner = _made()
    accumulation = Accumulation(2)
    accumulation.advance()
    scheduler = PreparedScheduler(
        torch.optim.lr_scheduler.StepLR(inner, 1, 0.5), inner, step_with_optimizer=False, accumulation=accumulation
    )
    inner.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.25]
