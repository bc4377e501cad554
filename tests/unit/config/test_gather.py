"""The launcher's settings: which file is read, and which of several contradicting switches holds."""

import pytest

from drivetrain.config.gather import gather
from drivetrain.config.resolve import Setting
from drivetrain.core.errors import ConfigError


def _cli(**values):
    return {name: Setting(value, f"--{name}") for name, value in values.items()}


def _home(tmp_path, **texts):
    folder = tmp_path / "accelerate"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return {"HF_HOME": str(tmp_path)}


def test_the_four_sources(tmp_path):
    variables = _home(tmp_path, default_config="mixed_precision: fp16\nnum_processes: 3\ndebug: true\n")
    variables |= {"ACCELERATE_MIXED_PRECISION": "bf16", "DRIVETRAIN_GRACE": "5", "DRIVETRAIN_CONFIG": '{"grace": 9}'}
    settings, path = gather(_cli(num_processes=2), variables)
    assert path == str(tmp_path / "accelerate" / "default_config.yaml")
    assert {name: settings[name] for name in ("mixed_precision", "num_processes", "debug", "grace", "cpu")} == {
        "mixed_precision": "bf16",
        "num_processes": 2,
        "debug": True,
        "grace": 5.0,
        "cpu": False,
    }
    sources = [settings.source(name) for name in ("mixed_precision", "num_processes", "debug", "grace", "cpu")]
    assert sources == ["ACCELERATE_MIXED_PRECISION", "--num_processes", f"{path}: debug", "DRIVETRAIN_GRACE", "default"]


def test_the_default_file_counts_with_cpu_too(tmp_path):
    variables = _home(tmp_path, default_config="mixed_precision: bf16")
    assert gather(_cli(cpu=True), variables)[0]["mixed_precision"] == "bf16"


def test_profile_and_named_file(tmp_path):
    variables = _home(tmp_path, default_config="debug: true", big="num_processes: 8", small="num_processes: 1")
    assert gather(_cli(profile="big"), variables)[0]["num_processes"] == 8
    assert gather({}, variables | {"DRIVETRAIN_PROFILE": "big"})[0]["num_processes"] == 8
    named = str(tmp_path / "accelerate" / "small.yaml")
    assert gather(_cli(config_file=named), variables | {"DRIVETRAIN_PROFILE": "big"})[0]["num_processes"] == 1
    with pytest.raises(ConfigError, match="both given"):
        gather(_cli(config_file=named, profile="big"), variables)


def test_no_file_at_all(tmp_path):
    settings, path = gather({}, {"HF_HOME": str(tmp_path)})
    assert path is None and settings.changed() == {}


@pytest.mark.parametrize(
    ("file", "variables", "cli", "on"),
    [
        ("distributed_type: FSDP", {}, {}, {"use_fsdp"}),
        ("distributed_type: FSDP", {}, {"multi_gpu": True}, {"multi_gpu"}),
        ("distributed_type: FSDP", {}, {"cpu": True}, {"use_fsdp", "cpu"}),
        ("distributed_type: MULTI_GPU", {}, {"cpu": True}, {"cpu"}),
        ("distributed_type: MULTI_CPU", {}, {"multi_gpu": True}, {"multi_gpu"}),
        ("distributed_type: MULTI_GPU", {"ACCELERATE_USE_FSDP": "true"}, {}, {"use_fsdp"}),
        ("debug: true", {"ACCELERATE_USE_FSDP": "true"}, {"use_deepspeed": True}, {"use_deepspeed"}),
        ("debug: true", {"ACCELERATE_USE_CPU": "true"}, {"multi_gpu": True}, {"multi_gpu"}),
        ("distributed_type: XLA", {}, {"cpu": True}, {"cpu"}),
        ("distributed_type: FSDP", {}, {"use_fsdp": False}, set()),
    ],
)
def test_a_stronger_choice_switches_off_a_weaker_one(tmp_path, file, variables, cli, on):
    settings, _ = gather(_cli(**cli), {**_home(tmp_path, default_config=file), **variables})
    switches = ("cpu", "multi_gpu", "tpu", "use_fsdp", "use_deepspeed", "use_megatron_lm")
    assert {name for name in switches if settings[name]} == on


def test_what_was_switched_off_says_by_whom(tmp_path):
    settings, _ = gather(_cli(multi_gpu=True), {"HF_HOME": str(tmp_path), "ACCELERATE_USE_CPU": "1"})
    assert settings.explicit("cpu") and not settings["cpu"]
    assert settings.source("cpu") == "--multi_gpu (instead of ACCELERATE_USE_CPU)"
