"""`prepare`: any order, any nesting, again later, and never under two masters."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from drivetrain import (
    Accelerator,
    ConfigError,
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    InputError,
    ProjectConfiguration,
    UsageError,
)
from drivetrain.training.optimizer import PreparedOptimizer
from drivetrain.training.scheduler import PreparedScheduler


def _parts():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return (
        model,
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        DataLoader(torch.arange(4), batch_size=2),
    )


def test_any_order_gives_the_same_order():
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler, loader = _parts()
    s, batches, o, other, m = accelerator.prepare(scheduler, loader, optimizer, "other", model)
    assert m is model and other == "other"
    assert isinstance(o, PreparedOptimizer) and o.optimizer is optimizer
    assert isinstance(s, PreparedScheduler) and list(s.optimizers) == [o]
    assert [b.tolist() for b in batches] == [[0, 1], [2, 3]]


def test_nesting_is_kept():
    accelerator = Accelerator(cpu=True)
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizers = {"a": torch.optim.SGD(a.parameters(), lr=1.0), "b": torch.optim.SGD(b.parameters(), lr=1.0)}
    models, prepared = accelerator.prepare((a, [b]), optimizers)
    assert models == (a, [b])
    assert {k: type(v) for k, v in prepared.items()} == {"a": PreparedOptimizer, "b": PreparedOptimizer}
    assert type(optimizers["a"]) is torch.optim.SGD


def test_what_holds_nothing_to_prepare_is_the_very_object():
    @dataclass
    class Options:
        rate: float = 0.5

    others = [[1, 2], {"a": 1}, Options(), os.environ]
    model = nn.Linear(1, 1)
    back = Accelerator(cpu=True).prepare(*others, [model, others[1]])
    assert all(x is y for x, y in zip(others, back, strict=False))
    assert back[-1][1] is others[1]


def test_one_argument_gives_one_object_and_none_gives_none():
    accelerator = Accelerator(cpu=True)
    assert isinstance(accelerator.prepare(nn.Linear(1, 1)), nn.Linear)
    assert accelerator.prepare() == ()


def test_again_gives_the_same_objects():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    parts = _parts()
    first = accelerator.prepare(*parts)
    assert all(x is y for x, y in zip(first, accelerator.prepare(*parts), strict=True))
    assert all(x is y for x, y in zip(first, accelerator.prepare(*first), strict=True))
    assert len(accelerator._models) == len(accelerator._optimizers) == len(accelerator._dataloaders) == 1


def test_later_parts_find_earlier_ones():
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler, _ = _parts()
    prepared = accelerator.prepare(model, optimizer)[1]
    assert list(accelerator.prepare(scheduler).optimizers) == [prepared]


def test_a_schedule_that_was_prepared_before_its_optimizer():
    accelerator = Accelerator(cpu=True)
    _, optimizer, scheduler, _ = _parts()
    scheduler = accelerator.prepare(scheduler)
    assert list(scheduler.optimizers) == [optimizer]
    optimizer = accelerator.prepare(optimizer)
    assert list(scheduler.optimizers) == [optimizer] and isinstance(optimizer, PreparedOptimizer)


def test_a_schedule_made_from_the_prepared_optimizer():
    accelerator = Accelerator(cpu=True)
    model, optimizer, _, _ = _parts()
    model, optimizer = accelerator.prepare(model, optimizer)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    scheduler.step()
    assert list(scheduler.optimizers) == [optimizer] and optimizer.param_groups[0]["lr"] == 0.25


def test_two_live_accelerators_with_other_settings():
    first, second = Accelerator(cpu=True), Accelerator(cpu=True, mixed_precision="bf16")
    model, optimizer, *_ = _parts()
    first.prepare(model, optimizer)
    with pytest.raises(UsageError, match="Linear was prepared by another Accelerator.*'no'.*'bf16'.*free_memory"):
        second.prepare(model)
    first.free_memory()
    assert second.prepare(model) is model
    assert model(torch.ones(1, 2)).dtype is torch.float32 and hasattr(model, "_original_forward")


def test_two_live_accelerators_with_the_same_settings_share():
    first, second = Accelerator(cpu=True), Accelerator(cpu=True)
    model, optimizer, *_ = _parts()
    assert first.prepare(model, optimizer)[1] is second.prepare(model, optimizer)[1]
    assert second._models == [model]


def test_loss_scales_are_not_shared():
    first, second = (Accelerator(cpu=True, mixed_precision="fp16") for _ in range(2))
    model, optimizer, *_ = _parts()
    first.prepare(model, optimizer)
    with pytest.raises(UsageError, match="SGD was prepared by another Accelerator.*loss scale"):
        second.prepare(model, optimizer)


def test_windows_are_not_shared():
    first, second = Accelerator(cpu=True, gradient_accumulation_steps=2), Accelerator(cpu=True)
    _, optimizer, *_ = _parts()
    first.prepare(optimizer)
    with pytest.raises(UsageError, match="gradient accumulation"):
        second.prepare(optimizer)


def test_a_loader_tells_one_accelerator_where_it_ends():
    first, second = Accelerator(cpu=True), Accelerator(cpu=True)
    loader = DataLoader(torch.arange(5), batch_size=2)
    prepared = first.prepare(loader)
    for one in (loader, prepared):
        with pytest.raises(UsageError, match="Loader was prepared by another Accelerator.*batches end"):
            second.prepare(one)
    first.free_memory()
    assert second.prepare(prepared) is prepared
    assert [second.num_valid for _ in prepared] == [2, 2, 1]


def _train(accelerator, model, optimizer, scheduler, loader):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch.float()).mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("same", [True, False])
def test_what_an_accelerator_has_let_go_of_goes_on_in_the_next(same):
    first = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parts = model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), DataLoader(torch.ones(3, 1))
    parts = first.prepare(*parts)
    with first.accumulate(model):  # its window stays open
        pass
    first.free_memory()
    second = first if same else Accelerator(cpu=True, gradient_accumulation_steps=2)
    del first
    model, optimizer, scheduler, loader = second.prepare(*parts)
    assert optimizer.optimizer is parts[1].optimizer and scheduler.scheduler is parts[2].scheduler
    _train(second, model, optimizer, scheduler, loader)
    assert model.weight.item() == -1.5 and scheduler.get_last_lr() == [0.25]


def test_an_accelerator_that_is_gone_does_not_count():
    model = nn.Linear(1, 1)
    first = Accelerator(cpu=True, mixed_precision="bf16")
    first.cycle = first  # only the cycle collector can free it
    first.prepare(model)
    del first
    Accelerator(cpu=True).prepare(model)


def test_models_without_values_and_wrong_placements():
    accelerator = Accelerator(cpu=True)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(InputError, match="'weight' is on the meta device"):
        accelerator.prepare(empty)
    with pytest.raises(ConfigError, match="2 entries for 1"):
        accelerator.prepare(nn.Linear(1, 1), device_placement=[True, False])


def test_free_memory_lets_go_of_everything():
    class Value:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, scheduler, loader = accelerator.prepare(*_parts())
    value = Value()
    accelerator.register_for_checkpointing(value)
    for _ in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
    gone = [weakref.ref(x) for x in (model, optimizer, scheduler, loader, value)]
    model, optimizer = accelerator.free_memory(model, optimizer)
    assert model is None and optimizer is None
    del scheduler, loader, value, _
    gc.collect()
    assert [ref() for ref in gone] == [None] * 5
    assert accelerator.step == 0 and accelerator.clear() == []


def test_only_what_has_a_state_can_be_registered():
    with pytest.raises(ConfigError, match="index 1, `int`.*index 2, `str`"):
        Accelerator(cpu=True).register_for_checkpointing(nn.Linear(1, 1), 3, "x")


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"mixed_precision": "bf17"}, "bf17.*no.*fp8.*fp16.*bf16"),
        ({"gradient_accumulation_steps": 0}, "at least one"),
        (
            {"gradient_accumulation_steps": 2, "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=3)},
            "one of",
        ),
        ({"kwargs_handlers": [3]}, "kwargs_handlers holds 3"),
        ({"dynamo_backend": "warp"}, "'warp' is unknown.*inductor"),
        ({"split_batches": True, "dataloader_config": DataLoaderConfiguration()}, "dataloader_config"),
        ({"fsdp_plugin": object()}, "fsdp_plugin.*single device and data parallel"),
    ],
)
def test_contradictions_are_errors(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        Accelerator(cpu=True, **kwargs)


def test_option_objects_of_the_caller_are_left_alone():
    loaders, project = DataLoaderConfiguration(), ProjectConfiguration()
    accelerator = Accelerator(cpu=True, dataloader_config=loaders, project_config=project, project_dir="here")
    accelerator.even_batches = False
    assert (loaders.even_batches, project.project_dir) == (True, None)
    assert (accelerator.even_batches, accelerator.project_dir) == (False, "here")


def test_two_accelerators_keep_their_own_settings():
    first = Accelerator(cpu=True, gradient_accumulation_steps=4)
    second = Accelerator(cpu=True, mixed_precision="bf16")
    first.gradient_accumulation_steps = 3
    assert (first.gradient_accumulation_steps, second.gradient_accumulation_steps) == (3, 1)
    assert (first.mixed_precision, second.mixed_precision) == ("no", "bf16")


def test_compiled_models_compute_and_unwrap():
    accelerator = Accelerator(cpu=True, dynamo_backend="eager")
    model = nn.Linear(2, 2)
    compiled = accelerator.prepare(model)
    x = torch.ones(1, 2)
    assert compiled is not model and torch.equal(compiled(x), model(x))
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model
    assert accelerator.unwrap_model(compiled) is compiled
    assert list(accelerator.get_state_dict(compiled)) == ["weight", "bias"]


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_a_prepared_module_gets_no_second_wrapper(wrap):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="wraps a Linear prepared before.*one wrapper"):
        accelerator.prepare(wrap(model))


def test_a_module_that_was_prepared_compiled_stays_so():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    compiled = accelerator.prepare(torch.compile(model, backend="eager"))
    assert accelerator.prepare(model) is compiled and accelerator._models == [model]
