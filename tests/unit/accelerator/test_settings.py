"""What an Accelerator is told, by arguments, option objects, variables and the launcher, and what it keeps."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from drivetrain import (
    Accelerator,
    AutocastKwargs,
    ConfigError,
    InputError,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)


def _output_dtype(**kwargs):
    accelerator = Accelerator(cpu=True, **{"mixed_precision": "bf16", **kwargs})
    return accelerator.prepare(nn.Linear(2, 2))(torch.ones(1, 2)).dtype


def test_low_precision_outputs_are_kept_when_code_a_variable_or_the_launcher_says_so(monkeypatch):
    assert _output_dtype() is torch.float32
    assert _output_dtype(keep_low_precision_outputs=True) is torch.bfloat16
    monkeypatch.setenv("DRIVETRAIN_CONFIG", json.dumps({"keep_low_precision_outputs": True}))
    assert _output_dtype() is torch.bfloat16
    assert _output_dtype(keep_low_precision_outputs=False) is torch.float32
    monkeypatch.setenv("DRIVETRAIN_KEEP_LOW_PRECISION_OUTPUTS", "false")
    assert _output_dtype() is torch.float32


def test_options_given_once_count_for_every_call(tmp_path):
    handlers = [AutocastKwargs(enabled=False), ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path))]
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=handlers)
    model, seen = nn.Sequential(nn.Linear(2, 2)), []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    accelerator.prepare(model)(torch.ones(1, 2))
    with accelerator.autocast():
        seen.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
    assert seen == [torch.float32, torch.float32]
    with accelerator.profile():
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["profile_0.json"]


def test_a_compilation_that_names_no_backend_takes_that_of_the_run(monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_DYNAMO_BACKEND", "eager")
    plugin = TorchDynamoPlugin(fullgraph=True)
    found = Accelerator(cpu=True, dynamo_plugin=plugin).dynamo_plugin
    assert (str(found.backend), found.fullgraph, found.active, plugin.backend) == ("EAGER", True, True, None)
    assert str(Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin(backend="inductor")).dynamo_plugin.backend) == (
        "INDUCTOR"
    )
    assert Accelerator(cpu=True, dynamo_backend="no").dynamo_plugin.active is False


def test_folders_of_a_project(tmp_path):
    plain = Accelerator(cpu=True, project_dir=tmp_path / "a")
    assert (plain.project_dir, plain.logging_dir) == (str(tmp_path / "a"), str(tmp_path / "a"))
    config = ProjectConfiguration(logging_dir=str(tmp_path / "logs"), iteration=3)
    both = Accelerator(cpu=True, project_dir=str(tmp_path / "b"), project_config=config)
    assert (both.project_dir, both.logging_dir, both.save_iteration) == (
        str(tmp_path / "b"), str(tmp_path / "logs"), 3,
    )  # fmt: skip
    none = Accelerator(cpu=True)
    assert (none.project_dir, none.logging_dir, none.should_save_model) == (None, None, True)


def test_hooks_around_checkpoints_can_be_taken_away_again():
    accelerator = Accelerator(cpu=True)
    for register, hooks in (
        (accelerator.register_save_state_pre_hook, accelerator._save_hooks),
        (accelerator.register_load_state_pre_hook, accelerator._load_hooks),
    ):
        handle = register(print)
        assert list(hooks.values()) == [print]
        handle.remove()
        assert not hooks


def test_a_schedule_that_does_not_follow_the_optimizer():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, step_scheduler_with_optimizer=False)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, schedule = accelerator.prepare(
        model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    )
    optimizer.step()
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            schedule.step()
    assert schedule.get_last_lr() == [0.25]


def test_gradients_are_unscaled_once(monkeypatch):
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.full((1, 1), 0.5)).sum() / 2**4)
    for _ in range(2):
        accelerator.unscale_gradients(optimizer)
    assert model.weight.grad.item() == 2**-5


def test_a_device_that_is_not_there(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("it is there")
    monkeypatch.setenv("DRIVETRAIN_TORCH_DEVICE", "cuda:0")
    with pytest.raises(ConfigError, match="torch_device='cuda:0' is not on this machine"):
        Accelerator()


def test_a_model_on_another_device_that_nobody_may_move(monkeypatch):
    class Elsewhere(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda", 0)

    class Model(nn.Module):
        def named_parameters(self, *args, **kwargs):
            yield "weight", torch.ones(1).as_subclass(Elsewhere)

    accelerator = Accelerator(cpu=True, device_placement=False)
    monkeypatch.setattr(type(accelerator), "use_distributed", True)
    with pytest.raises(InputError, match="Model is on cuda:0, but this run computes on cpu.*Move the model"):
        accelerator.prepare(Model())
