"""Precision: what runs in what dtype, and what an overflow does."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from drivetrain.core.errors import ConfigError, UsageError
from drivetrain.platforms.cpu import Cpu
from drivetrain.precision import autocast, policy
from drivetrain.precision.scaler import LossScaler, step


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        self.seen = self.linear(x).dtype
        return {"y": self.linear(x) * scale, "n": 3}


def test_policies_by_name():
    assert not policy.choose("no", Cpu()).mixed
    assert policy.choose("bf16", Cpu()).compute_dtype is torch.bfloat16
    fp16 = policy.choose("FP16", Cpu())
    assert fp16.compute_dtype is torch.float16 and fp16.loss_scaling


@pytest.mark.parametrize("name, words", [("fp7", "no.*fp8.*fp16.*bf16"), ("fp8", "not available")])
def test_unknown_and_missing_precisions_are_errors(name, words):
    with pytest.raises(ConfigError, match=words):
        policy.choose(name, Cpu())


def test_a_precision_the_device_has_not_is_an_error():
    class Old(Cpu):
        def why_not(self, precision):
            return "too old"

    with pytest.raises(ConfigError, match="bf16.*too old"):
        policy.choose("bf16", Old())


@pytest.mark.parametrize("keep", [False, True])
def test_forward_computes_low_and_gives_back_float32_unless_told(keep):
    model = Net()
    autocast.apply(model, policy.choose("bf16", Cpu(), keep_low_precision_outputs=keep), "cpu")
    out = model(torch.ones(2, 4))
    assert model.seen is torch.bfloat16
    assert out["y"].dtype is (torch.bfloat16 if keep else torch.float32) and out["n"] == 3
    assert "scale" in inspect.signature(model.forward).parameters


def test_applying_twice_and_removing():
    model = Net()
    chosen = policy.choose("bf16", Cpu())
    autocast.apply(model, chosen, "cpu")
    once = model.forward
    autocast.apply(model, chosen, "cpu")
    assert model.forward is once
    autocast.remove(model)
    model(torch.ones(2, 4))
    assert model.seen is torch.float32
    assert "forward" not in model.__dict__ and autocast.ORIGINAL not in model.__dict__


def test_another_policy_takes_the_place_of_the_first():
    model = Net()
    for name, dtype in [("bf16", torch.bfloat16), ("fp16", torch.float16), ("no", torch.float32)]:
        autocast.apply(model, policy.choose(name, Cpu()), "cpu")
        model(torch.ones(2, 4))
        assert model.seen is dtype
    assert "forward" not in model.__dict__


def test_a_function_the_user_put_in_forward_comes_back():
    model = nn.Linear(4, 4)
    model.forward = lambda x: x.sum()
    own = model.forward
    autocast.apply(model, policy.choose("bf16", Cpu()), "cpu")
    assert model(torch.ones(4)).item() == 4
    autocast.remove(model)
    assert model.forward is own


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_computes_with_its_own_weights(way):
    model = nn.Linear(4, 4)
    autocast.apply(model, policy.choose("bf16", Cpu()), "cpu")
    other = way(model)
    with torch.no_grad():
        other.weight.zero_()
        other.bias.fill_(2)
    x = torch.ones(1, 4)
    assert other(x).tolist() == [[2, 2, 2, 2]]
    assert other(x).dtype is torch.float32
    assert not torch.equal(model(x), other(x))


def _scaled(optimizers, scaler, gradients):
    for optimizer, gradient in zip(optimizers, gradients, strict=True):
        (p,) = optimizer.param_groups[0]["params"]
        p.grad = torch.full_like(p, gradient)
    scaler.scale(torch.ones(()))
    return [scaler.step_if_finite(o)[0] for o in optimizers]


@pytest.mark.parametrize("fused", [False, True])
def test_overflow_skips_the_step_its_hooks_and_lowers_the_scale(fused):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    fired = []
    optimizer.register_step_post_hook(lambda *args: fired.append(1))
    scaler = LossScaler("cpu", init_scale=4.0)
    assert _scaled([optimizer], scaler, [float("inf")]) == [False]
    assert weight.item() == 1.0 and not fired
    assert scaler.get_scale() == 2.0
    assert _scaled([optimizer], scaler, [2.0]) == [True]
    assert weight.item() != 1.0 and fired == [1]


def test_two_optimizers_step_at_one_scale():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([w], lr=1.0) for w in weights]
    scaler = LossScaler("cpu", init_scale=4.0, growth_interval=1)
    for _ in range(2):  # the scale grows after each iteration, and must not grow between the two steps of one
        scale = scaler.get_scale()
        for weight in weights:
            weight.grad = torch.full((1,), scale)
        scaler.scale(torch.ones(()))
        for optimizer in optimizers:
            scaler.step_if_finite(optimizer)
    assert [w.item() for w in weights] == [-2.0, -2.0]
    assert scaler.get_scale() == 16.0


def test_state_is_that_after_the_step():
    weight = nn.Parameter(torch.ones(1))
    scaler = LossScaler("cpu", init_scale=4.0)
    _scaled([torch.optim.SGD([weight], lr=1.0)], scaler, [float("nan")])
    assert scaler.state_dict()["scale"] == 2.0


def test_gradients_that_were_unscaled_and_dropped_do_not_count_for_the_next():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = LossScaler("cpu", init_scale=4.0)
    for value, scale in [(float("inf"), 4.0), (2.0, 2.0)]:
        assert scaler.get_scale() == scale
        scaler.scale(torch.ones(()))
        weight.grad = torch.full((1,), value * scale)
        scaler.unscale_(optimizer)
        scaler.cleared(optimizer)
    weight.grad = torch.full((1,), 2.0)
    scaler.scale(torch.ones(()))
    assert scaler.step_if_finite(optimizer) == (True, None) and weight.item() == -1.0


def test_an_optimizer_without_gradients_and_an_update_by_hand():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([w], lr=1.0) for w in weights]
    scaler = LossScaler("cpu", init_scale=4.0)
    assert scaler.step_if_finite(optimizers[1]) == (True, None)  # before any loss
    for _ in range(2):
        scaler.scale(torch.ones(()))
        weights[0].grad = torch.full((1,), 4.0)
        assert [scaler.step_if_finite(o)[0] for o in optimizers] == [True, True]
        scaler.update()
    assert [w.item() for w in weights] == [-2.0, 0.0]


def test_a_closure_is_refused_where_gradients_are_scaled():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for made in (LossScaler("cpu"), torch.amp.GradScaler("cpu")):
        with pytest.raises(UsageError, match="closure.*bf16"):
            step(made, optimizer, lambda: 1.0)
    assert step(LossScaler("cpu", enabled=False), optimizer, lambda: 1.0) == (True, 1.0)
