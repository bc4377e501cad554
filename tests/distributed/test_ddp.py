"""Data parallel on two ranks: what is averaged when, which hook it goes through, and how uneven ends are joined."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ranks import rank_outcomes, run_ranks, run_script


def _accelerator(**kwargs):
    from drivetrain import Accelerator

    return Accelerator(cpu=True, **kwargs)


def _linear(value=0.0):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def _grad(model):
    return model.module.weight.grad.item()


def _syncing():
    accelerator = _accelerator(gradient_accumulation_steps=2)
    r = accelerator.process_index
    model, frozen = _linear(), _linear().requires_grad_(False)
    prepared, still = accelerator.prepare(model, frozen)
    out = {
        "kind": type(prepared).__name__,
        "frozen": still is frozen,
        "same": accelerator.prepare(model) is prepared,
        "unwrapped": accelerator.unwrap_model(prepared) is model,
        "names": list(accelerator.get_state_dict(prepared)),
        "type": str(accelerator.distributed_type.value),
    }
    x = torch.full((1, 1), 1.0 + r)
    with accelerator.no_sync(prepared):
        accelerator.backward(2 * prepared(x).sum())  # halved, since outside of a window
        out["no_sync"] = _grad(prepared)
    prepared.zero_grad()
    with accelerator.no_sync(prepared):
        loss = 2 * prepared(x).sum()
        with accelerator.trigger_sync_in_backward(prepared):
            accelerator.backward(loss)
    out["triggered"] = _grad(prepared)
    prepared.zero_grad()
    seen = []
    for _ in range(2):
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(x).sum())
            seen.append(_grad(prepared))
    out["window"] = seen
    return out


def test_gradients_are_averaged_when_a_window_ends():
    for r, out in enumerate(run_ranks(_syncing)):
        assert out == {
            "kind": "DistributedDataParallel", "frozen": True, "same": True, "unwrapped": True, "names": ["weight"],
            "type": "MULTI_CPU", "no_sync": 1.0 + r, "triggered": 1.5, "window": [(1 + r) / 2, 1.5],
        }  # fmt: skip


def _two_models():
    accelerator = _accelerator(gradient_accumulation_steps=2)
    a, b, loader = accelerator.prepare(_linear(), _linear(), DataLoader(torch.ones(12, 1), batch_size=1))
    rows = []
    for batch in loader:
        batch = batch * (1 + accelerator.process_index)
        with accelerator.accumulate(a, b):
            accelerator.backward(a(batch).sum() + 10 * b(batch).sum())
            if accelerator.sync_gradients:
                rows.append([_grad(a), _grad(b)])
                a.zero_grad()
                b.zero_grad()
    return rows


def test_models_of_one_window_are_averaged_together():
    assert run_ranks(_two_models) == [[[1.5, 15.0]] * 3] * 2


def _hooked(hook, wrapper, state):
    from drivetrain import DistributedDataParallelKwargs

    options = DistributedDataParallelKwargs(
        comm_hook=hook, comm_wrapper=wrapper, comm_state_option=state, gradient_as_bucket_view=True
    )
    accelerator = _accelerator(kwargs_handlers=[options])
    model = accelerator.prepare(_linear())
    # 1/3 is no half-precision number, so the rounding tells which way the gradient went.
    accelerator.backward(model(torch.full((1, 1), 1 / 3)).sum())
    return _grad(model)


SOON = {"start_powerSGD_iter": 2, "matrix_approximation_rank": 1}


@pytest.mark.parametrize(
    "hook, wrapper, state",
    [
        ("no", "no", {}),
        ("fp16", "no", {}),
        ("power_sgd", "fp16", {}),
        ("power_sgd", "no", SOON),
        ("batched_power_sgd", "no", SOON),
    ],
)
def test_gradients_go_through_the_hook(hook, wrapper, state):
    expected = torch.tensor(1 / 3).half().item() if "fp16" in (hook, wrapper) else 1 / 3
    for got in run_ranks(_hooked, args=(hook, wrapper, state)):
        assert got == pytest.approx(expected, rel=1e-6 if wrapper == "no" else 1e-3)


def test_a_hook_that_cannot_run_here_says_so():
    for outcome in rank_outcomes(_hooked, args=("bf16", "no", {})):
        assert outcome.error == "ConfigError" and "bf16" in outcome.text
    for outcome in rank_outcomes(_hooked, args=("no", "fp16", {})):
        assert outcome.error == "ConfigError" and "comm_hook" in outcome.text


def _wrapped():
    from drivetrain import GradientAccumulationPlugin

    plugin = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    accelerator = _accelerator(gradient_accumulation_plugin=plugin)
    evaluated = accelerator.prepare_model(_linear(), evaluation_mode=True)
    model = accelerator.prepare(_linear())
    seen = []
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
            seen.append(_grad(model))
    outcome = [type(evaluated).__name__, seen]
    try:
        accelerator.prepare(nn.parallel.DistributedDataParallel(accelerator.unwrap_model(model)))
    except RuntimeError as error:
        outcome.append(str(error))
    return outcome


def test_what_is_wrapped_and_what_is_reduced_at_every_micro_batch():
    for evaluated, seen, refusal in run_ranks(_wrapped):
        assert evaluated == "Linear"
        assert seen == [0.75, 1.5]
        assert "wraps a Linear prepared before" in refusal


def _uneven():
    from drivetrain import DataLoaderConfiguration

    accelerator = _accelerator(dataloader_config=DataLoaderConfiguration(even_batches=True))
    model, loader = accelerator.prepare(_linear(), DataLoader(torch.ones(5, 1), batch_size=1))
    counts = []
    for even in (None, False):
        seen = 0
        with accelerator.join_uneven_inputs([model], even_batches=even):
            for batch in loader:
                accelerator.backward(model(batch).sum())
                seen += 1
        counts.append(seen)
    accelerator.wait_for_everyone()
    return [*counts, accelerator.even_batches]


def test_ranks_with_fewer_batches_are_joined():
    assert run_ranks(_uneven) == [[3, 3, True], [3, 2, True]]


def _own_loop(compiled):
    accelerator = _accelerator(dynamo_backend="eager" if compiled else None)
    model = accelerator.prepare(_linear())
    seen = 0
    with accelerator.join_uneven_inputs([model], even_batches=None if compiled else False):
        for _ in range(3 - accelerator.process_index):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            seen += 1
    accelerator.wait_for_everyone()
    with accelerator.join_uneven_inputs([model]), pytest.raises(RuntimeError, match="join_uneven_inputs"):
        accelerator.backward(model(torch.ones(1, 1)).sum(), weight=1)
    with accelerator.join_uneven_inputs([model], even_batches=True):
        accelerator.backward(model(torch.ones(1, 1)).sum(), weight=1)
    return seen


def _windows_joined(with_loader):
    from drivetrain import DataLoaderConfiguration, GradientAccumulationPlugin

    accelerator = _accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=with_loader),
        dataloader_config=DataLoaderConfiguration(even_batches=False),
    )
    model, loader = accelerator.prepare(_linear(), DataLoader(torch.ones(7, 1), batch_size=1))
    seen = []
    with accelerator.join_uneven_inputs([model]):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                seen.append(accelerator.sync_gradients)
    accelerator.wait_for_everyone()
    return [*seen, _grad(model)]


def test_windows_inside_a_join_end_together():
    for outcome in rank_outcomes(_windows_joined, args=(True,)):
        assert outcome.error == "UsageError" and "sync_with_dataloader=False" in outcome.text
    first, second = run_ranks(_windows_joined, args=(False,))
    assert first[:4] == [False, True, False, True] and second[:3] == [False, True, False]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_over_something_else_than_a_prepared_loader_is_joined(compiled):
    assert run_ranks(_own_loop, args=(compiled,)) == [3, 2]


def _trained_after(how):
    accelerator = _accelerator(dynamo_backend="eager" if how == "compiled" else None)
    model = _linear()
    if how == "frozen":
        before = accelerator.prepare(model.requires_grad_(False))
        model.requires_grad_(True)
    else:
        before = accelerator.prepare_model(model, evaluation_mode=True)
    after = accelerator.prepare(before)
    again = accelerator.prepare(model)
    x = torch.full((1, 1), 1.0 + accelerator.process_index)
    accelerator.backward(after(x).sum())
    reduced = model.weight.grad.item()
    model.zero_grad()
    with accelerator.no_sync(after):
        loss = after(x).sum()
        with accelerator.trigger_sync_in_backward(after):
            accelerator.backward(loss)
    return [reduced, model.weight.grad.item(), again is after, len(accelerator._models)]


@pytest.mark.parametrize("how", ["evaluated", "frozen", "compiled"])
def test_a_model_that_was_prepared_for_less_is_wrapped_when_it_trains(how):
    assert run_ranks(_trained_after, args=(how,)) == [[1.5, 1.5, True, 1]] * 2


def _wrapped_before(by):
    if by == "user":
        from torch.nn.parallel import DistributedDataParallel

        accelerator = _accelerator()
        wrapped = DistributedDataParallel(_linear())
    else:
        wrapped = _accelerator(mixed_precision="bf16").prepare(_linear())
        accelerator = _accelerator()
    inner = wrapped.module
    prepared = accelerator.prepare(wrapped)
    accelerator.backward(prepared(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
    return [prepared is wrapped, accelerator._models[0] is inner, inner.weight.grad.item(), "forward" in vars(inner)]


@pytest.mark.parametrize("by", ["user", "accelerator that is gone"])
def test_a_wrapper_that_is_there_is_kept(by):
    assert run_ranks(_wrapped_before, args=(by,)) == [[True, True, 1.5, False]] * 2


def _schedule(unit):
    accelerator = _accelerator(**({"schedule_unit": unit} if unit else {}))
    model = _linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, scheduler = accelerator.prepare(
        model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    )
    optimizer.step()
    scheduler.step()
    return scheduler.get_last_lr()


@pytest.mark.parametrize("unit, rate", [(None, 0.5), ("optimizer_step", 0.5), ("process", 0.25)])
def test_a_schedule_counts_optimizer_steps_unless_told(unit, rate):
    assert run_ranks(_schedule, args=(unit,)) == [[rate]] * 2


KEPT = """
import torch
from drivetrain import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(3):
    accelerator.backward(model(torch.randn(4, 16)).mean())
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
print(f"END {accelerator.process_index}\\n", end="", flush=True)
"""


@pytest.mark.limit(240)
@pytest.mark.parametrize("start", ["fork", "fresh", "torchrun"])
def test_a_script_that_keeps_its_model_ends_by_itself(tmp_path, start):
    script = tmp_path / "script.py"
    script.write_text(KEPT)
    launch = ["drivetrain", "launch", "--cpu", "--num_processes", "2", "--start_method", start]
    command = ["torchrun", "--standalone", "--nproc-per-node", "2"] if start == "torchrun" else launch
    for _ in range(2):
        out = run_script([*command, script], timeout=90)
        assert out.returncode == 0, out.output
        assert sorted(line for line in out.stdout.splitlines() if "END" in line) == ["END 0", "END 1"]


def _shared_random_state(kinds):
    accelerator = _accelerator(rng_types=kinds)
    torch.manual_seed(accelerator.process_index)
    loader = accelerator.prepare(DataLoader(torch.arange(4), batch_size=1))
    return [torch.rand(1).item() for _ in loader]


@pytest.mark.parametrize("kinds", [["torch"], []])
def test_random_states_are_shared_at_the_start_of_an_epoch_when_asked(kinds):
    first, second = run_ranks(_shared_random_state, args=(kinds,))
    assert (first == second) == bool(kinds)


def _wrong_backend():
    from drivetrain import InitProcessGroupKwargs

    _accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="xccl")])


def test_a_backend_that_does_not_fit_the_device_says_so():
    for outcome in rank_outcomes(_wrong_backend):
        assert outcome.error == "ConfigError" and "'xccl'" in outcome.text and "gloo" in outcome.text
