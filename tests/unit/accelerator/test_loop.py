"""One training step: backward, windows, clipping, precision, profile."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from drivetrain import (
    Accelerator,
    AutocastKwargs,
    ConfigError,
    GradScalerKwargs,
    InputError,
    ProfileKwargs,
    UsageError,
)


def _ones(n, width=1):
    return DataLoader(torch.ones(n, width), batch_size=1)


def _linear():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_a_short_window_is_divided_by_its_own_length():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, loader = accelerator.prepare(_linear(), _ones(6))
    gradients = []
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            if accelerator.sync_gradients:
                gradients.append(model.weight.grad.item())
                model.zero_grad()
    assert gradients == [1.0, 1.0]


def test_two_losses_in_the_last_micro_batch():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, loader = accelerator.prepare(_linear(), _ones(2))
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            accelerator.backward(2 * model(x).mean())
    assert model.weight.grad.item() == 3.0


def test_weighted_sums_are_divided_once_by_all_weights():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = accelerator.prepare(_linear())
    for tokens in (3, 0, 5):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(tokens, 1)).sum() * 2, weight=tokens)
    assert model.weight.grad.item() == pytest.approx(2.0, rel=1e-7)
    model.zero_grad()
    for tokens in (0, 0, 0):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(tokens, 1)).sum(), weight=torch.tensor(tokens))
    assert model.weight.grad.item() == 0.0


def test_two_weighted_losses_in_the_last_micro_batch():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(_linear())
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 1)).sum(), weight=2)
            accelerator.backward(3 * model(torch.ones(4, 1)).sum(), weight=4)
    assert model.weight.grad.item() == pytest.approx((2 * 2 + 3 * 4 * 2) / 12)


def test_a_window_has_one_kind_of_loss():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(_linear())
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).mean())
    with accelerator.accumulate(model), pytest.raises(UsageError, match="weight"):
        accelerator.backward(model(torch.ones(1, 1)).sum(), weight=1)


def test_a_weight_outside_of_a_window_needs_no_window_when_there_is_none():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(_linear())
    accelerator.backward(model(torch.ones(4, 1)).sum(), weight=4)
    assert model.weight.grad.item() == 1.0
    accelerator.gradient_accumulation_steps = 2
    with pytest.raises(UsageError, match="accumulate"):
        accelerator.backward(model(torch.ones(4, 1)).sum(), weight=4)


def test_without_accumulate_a_loss_is_divided_by_the_steps():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = accelerator.prepare(_linear())
    accelerator.backward(model(torch.ones(1, 1)).mean())
    assert model.weight.grad.item() == 0.25


@pytest.mark.parametrize(
    "loss, words", [(3.0, "float, not a tensor"), (torch.ones(2, requires_grad=True), r"shape \[2\].*loss.mean")]
)
def test_what_is_no_loss(loss, words):
    with pytest.raises(InputError, match=words):
        Accelerator(cpu=True).backward(loss)


def test_a_gan_keeps_two_windows():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    a, b = _linear(), _linear()
    oa, ob = torch.optim.SGD(a.parameters(), lr=1.0), torch.optim.SGD(b.parameters(), lr=1.0)
    a, b, oa, ob, loader = accelerator.prepare(a, b, oa, ob, _ones(4))
    for x in loader:
        for model, optimizer in ((a, oa), (b, ob)):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean())
                optimizer.step()
                optimizer.zero_grad()
    assert a.weight.item() == b.weight.item() == -2.0


def test_a_window_inside_another_leaves_it_alone():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    outer, inner, loader = accelerator.prepare(_linear(), _linear(), _ones(2))
    for x in loader:
        with accelerator.accumulate(outer):
            with accelerator.accumulate(inner):
                accelerator.backward(inner(x).mean())
            accelerator.backward(outer(x).mean())
    assert outer.weight.grad.item() == inner.weight.grad.item() == 1.0


def test_optimizers_that_move_in_backward():
    class Lomo(torch.optim.Optimizer):
        def fused_backward(self, loss, rate):
            (gradient,) = torch.autograd.grad(loss, self.param_groups[0]["params"])
            self.param_groups[0]["params"][0].data -= rate * gradient

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = _linear()
    model, optimizer = accelerator.prepare(model, Lomo(model.parameters(), {}))
    accelerator.backward(model(torch.ones(1, 1)).mean(), learning_rate=2.0)
    optimizer.step()
    assert model.weight.item() == -0.5
    with pytest.raises(UsageError, match="LOMO"):
        accelerator.backward(model(torch.ones(1, 1)).sum(), weight=1, learning_rate=2.0)


def test_a_process_that_is_alone_runs_what_another_rank_would():
    accelerator = Accelerator(cpu=True)
    assert accelerator.on_process(lambda: 1, process_index=3)() == 1
    assert accelerator.on_local_process(lambda: 1, local_process_index=3)() == 1
    for index in (None, -1):
        with pytest.raises(ConfigError, match="process_index"):
            accelerator.on_process(process_index=index)


def test_clipping_waits_for_the_end_of_the_window():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(_linear(), _ones(2))
    norms, gradients = [], []
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(10 * model(x).mean())
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
            accelerator.clip_grad_value_(model.parameters(), 0.5) if accelerator.sync_gradients else None
            gradients.append(model.weight.grad.item())
    assert norms == [5.0, 10.0] and gradients == [5.0, 0.5]


def test_fp16_on_the_cpu_scales_clips_and_skips():
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    seen = {}
    hook = model.register_forward_hook(lambda m, args, out: seen.update(out=out.dtype))
    accelerator.backward(model(torch.full((1, 1), 4.0)).mean())
    hook.remove()
    assert seen == {"out": torch.float32}  # outputs are converted
    assert model.weight.grad.item() == 32.0
    assert accelerator.clip_grad_norm_(model.parameters(), 2.0).item() == 4.0
    optimizer.step()
    scheduler.step()
    assert model.weight.item() == pytest.approx(-2.0, abs=1e-5) and scheduler.get_last_lr() == [0.5]
    optimizer.zero_grad()
    accelerator.backward(model(torch.full((1, 1), float("inf"))).mean())
    before = model.weight.item()
    optimizer.step()
    scheduler.step()
    assert model.weight.item() == before and accelerator.optimizer_step_was_skipped
    assert scheduler.get_last_lr() == [0.5] and accelerator.scaler.get_scale() == 4.0


def test_fp16_after_a_step_that_the_script_left_out():
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
    model = _linear()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    norms = []
    for factor in (float("inf"), 3.0):
        accelerator.backward(model(torch.full((1, 1), factor)).mean())
        norms.append(accelerator.clip_grad_norm_(model.parameters(), 10.0).item())
        if norms[-1] < 10.0:
            optimizer.step()
        optimizer.zero_grad()
    assert norms == [float("inf"), 3.0] and model.weight.item() == -3.0 and accelerator.scaler.get_scale() == 4.0


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_micro_batches_are_one_batch(precision):
    data, gradients = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), []
    for steps in (1, 4):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps, mixed_precision=precision)
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        model, loader = accelerator.prepare(model, DataLoader(data, batch_size=8 // steps))
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward((model(batch) ** 2).mean())
        gradients.append(model.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-6 if precision == "no" else 2e-2, atol=1e-6)


def test_autocast_and_low_precision_outputs():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", keep_low_precision_outputs=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    assert model(torch.ones(1, 2)).dtype is torch.bfloat16
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
        with accelerator.autocast(AutocastKwargs(enabled=False)):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        with accelerator.autocast(AutocastKwargs(cache_enabled=False)):
            assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_cache_enabled()
    with Accelerator(cpu=True).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_profile_writes_a_trace(tmp_path):
    accelerator = Accelerator(cpu=True)
    options = ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path / "traces"))
    with accelerator.profile(options) as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)
    trace = json.loads((tmp_path / "traces" / "profile_0.json").read_text())
    assert any("matmul" in str(event.get("name")) for event in trace["traceEvents"])
    assert "aten::matmul" in {row.key for row in profiler.key_averages()}


def test_num_valid_is_about_the_current_batch():
    accelerator = Accelerator(cpu=True)
    counts = [accelerator.num_valid for _ in accelerator.prepare(DataLoader(torch.arange(5), batch_size=2))]
    assert counts == [2, 2, 1]
    with pytest.raises(UsageError, match="no prepared loader"):
        _ = accelerator.num_valid


def test_a_copy_of_something_that_holds_the_accelerator():
    accelerator = Accelerator(cpu=True)
    assert copy.deepcopy({"a": accelerator})["a"] is accelerator


@pytest.mark.parametrize("after", ["nothing", "backward", "step"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_micro_batch_that_fails_leaves_no_trace(after, at):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = _linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    moves, done = [], 0
    for i in range(9):
        before = model.weight.item()
        try:
            with accelerator.accumulate(model):
                if i == at and after == "nothing":
                    raise KeyError
                accelerator.backward(model(torch.ones(1, 1)).mean())
                if i == at and after == "backward":
                    raise KeyError
                optimizer.step()
                optimizer.zero_grad()
                if i == at and after == "step":
                    raise KeyError
        except KeyError:
            pass
        if model.weight.item() != before:
            moves.append(before - model.weight.item())
            done += 1
    assert moves == pytest.approx([1.0] * done)  # each step is the mean gradient of its window, which is 1
    assert done == 4


def test_an_optimizer_that_has_moved_keeps_its_state_as_it_is():
    model = nn.Linear(2, 2).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    for kept in optimizer.state.values():
        kept["exp_avg"] = kept["exp_avg"].float()
    groups = optimizer.param_groups[0]
    Accelerator(cpu=True).prepare(model, optimizer)
    assert optimizer.param_groups[0] is groups
    assert {kept["exp_avg"].dtype for kept in optimizer.state.values()} == {torch.float32}
