"""Platforms: each is there by its file name, and a machine without its device says so without touching it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from drivetrain.config.environ import ProcessEnv
from drivetrain.core import registry
from drivetrain.core.errors import ConfigError
from drivetrain.platforms.base import Platform

NAMES = ["cpu", "cuda", "hpu", "mlu", "mps", "musa", "neuron", "npu", "sdaa", "xla", "xpu"]


def test_every_family_has_its_file():
    assert registry.names("platforms") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_platform_answers_without_its_device(name):
    platform = registry.find("platforms", name, Platform)
    assert isinstance(platform.is_available(), bool)
    assert platform.collective_backend and platform.distributed_type is not None
    if name != "xla":
        assert isinstance(platform.device_count(), int)


@pytest.mark.parametrize("name", ["mps", "xla"])
def test_several_processes_where_there_is_no_way_yet(name):
    platform = registry.find("platforms", name, Platform)()
    with pytest.raises(ConfigError, match=f"several processes on {name} are not available.*--cpu"):
        platform.open_comm(
            platform.collective_backend,
            torch.device(name),
            ProcessEnv(rank=0, world_size=2),
            timeout=None,
            collective_timeout=None,
            init_method=None,
        )


def test_the_processor_is_always_there():
    cpu = registry.find("platforms", "cpu", Platform)()
    assert cpu.is_available() and cpu.device(3) == torch.device("cpu")
    assert cpu.why_not("fp16") is None and cpu.ddp_devices(torch.device("cpu")) is None
    before = cpu.peak_memory(torch.device("cpu"))
    assert 10 * 2**20 < before <= cpu.peak_memory(torch.device("cpu"))


def test_a_rank_that_does_not_know_where_rank_0_is(monkeypatch):
    from drivetrain.session import open_world

    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="rank 3 of 4.*MASTER_ADDR"):
        open_world(cpu=True)


def test_options_of_the_group_that_say_nothing_change_nothing():
    from drivetrain.config.handlers import InitProcessGroupKwargs

    options = InitProcessGroupKwargs(backend="nccl")
    assert options.to_kwargs() == {}
    assert InitProcessGroupKwargs(backend="gloo").to_kwargs()["timeout"].total_seconds() == 1800
    said = InitProcessGroupKwargs(timeout=timedelta(seconds=600))
    assert said.to_kwargs() == {"timeout": timedelta(seconds=600)}
