"""One call of a prepared schedule moves it once for each process, as scripts of this API expect; and that is said."""

from __future__ import annotations

import logging

import pytest
import torch

from ranks import run_ranks

ENV = {"ACCELERATE_USE_CPU": "true"}


def _moved(options):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("drivetrain").addHandler(handler)
    if options.pop("split", False):
        options["dataloader_config"] = DataLoaderConfiguration(split_batches=True)
    accelerator = Accelerator(**options)
    steps = []
    for make in (
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
    ):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, make(optimizer))
        optimizer.step()
        schedule.step(*([1.0] if "Plateau" in type(schedule.scheduler).__name__ else []))
        steps.append(schedule.last_epoch)
    return [steps, [text for text in heard if "schedule" in text]]


@pytest.mark.parametrize(
    ("options", "env", "steps", "said"),
    [
        ({}, {}, [2, 1, 2], True),
        ({"schedule_unit": "optimizer_step"}, {}, [1, 1, 1], False),
        ({}, {"DRIVETRAIN_SCHEDULE_UNIT": "optimizer_step"}, [1, 1, 1], False),
        ({"schedule_unit": "process"}, {}, [2, 1, 2], False),
        ({"split": True}, {}, [1, 1, 1], False),
    ],
    ids=["default", "argument", "variable", "asked for", "split batches"],
)
def test_what_one_call_is_and_that_it_is_said_once(options, env, steps, said):
    first, second = run_ranks(_moved, args=(options,), env=ENV | env)
    assert first[0] == second[0] == steps
    assert len(first[1]) == said and not second[1]
    if said:
        (text,) = first[1]
        assert "moves it 2 steps, one for each process" in text
        assert "schedule_unit='optimizer_step'" in text and "--schedule_unit optimizer_step" in text
