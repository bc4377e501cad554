"""What else scripts import from ``accelerate.utils``: environment, versions, availability, files, random state."""

import logging
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import accelerate.utils as utils
from accelerate import Accelerator
from accelerate.commands.config import default_config_file, load_config_from_file
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
from accelerate.logging import get_logger
from accelerate.tracking import GeneralTracker, filter_trackers, register_tracker_class, registered
from accelerate.utils import environment, imports, other

# -- environment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["y", "YES", "t", "True", "on", "1"])
def test_true_words(word):
    assert utils.str_to_bool(word) == 1
    assert utils.str_to_bool(word, to_bool=True) is True


@pytest.mark.parametrize("word", ["n", "no", "F", "false", "off", "0"])
def test_false_words(word):
    assert utils.str_to_bool(word) == 0
    assert utils.str_to_bool(word, to_bool=True) is False


def test_other_words_are_errors(monkeypatch):
    with pytest.raises(ValueError, match="invalid truth value 'maybe'"):
        utils.str_to_bool("Maybe")
    monkeypatch.setenv("SOME_FLAG", "“true”")
    with pytest.raises(ValueError, match="SOME_FLAG"):
        utils.parse_flag_from_env("SOME_FLAG")


def test_reading_variables(monkeypatch):
    monkeypatch.setenv("A_FLAG", "on")
    monkeypatch.setenv("A_CHOICE", "bf16")
    monkeypatch.setenv("A_NUMBER", "3")
    assert utils.parse_flag_from_env("A_FLAG") is True
    assert utils.parse_flag_from_env("NOT_SET", default=True) is True
    assert utils.parse_choice_from_env("A_CHOICE") == "bf16"
    assert utils.parse_choice_from_env("NOT_SET") == "no"
    assert utils.get_int_from_env(["NOT_SET", "A_NUMBER"], 7) == 3
    assert utils.get_int_from_env(["NOT_SET"], 7) == 7
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert utils.get_cpu_distributed_information() == environment.CPUInformation(1, 4, 1, 2)


def test_environments_for_a_while(monkeypatch):
    monkeypatch.setenv("A_WORD", "old")
    with pytest.raises(KeyError), utils.patch_environment(a_word="new", number=3, none=None):
        assert (os.environ["A_WORD"], os.environ["NUMBER"], os.environ["NONE"]) == ("new", "3", "None")
        raise KeyError
    assert os.environ["A_WORD"] == "old"
    assert "NUMBER" not in os.environ
    with utils.clear_environment():
        assert dict(os.environ) == {}
        os.environ["A_WORD"] = "inside"
    assert os.environ["A_WORD"] == "old"


def test_variables_are_purged_after_each_call(monkeypatch):
    monkeypatch.setenv("ACCELERATE_KEPT", "old")

    @utils.purge_accelerate_environment
    def change():
        os.environ["ACCELERATE_KEPT"] = "new"
        os.environ["ACCELERATE_NEW"] = "1"
        return "done"

    assert change() == "done"
    assert os.environ["ACCELERATE_KEPT"] == "old"
    assert "ACCELERATE_NEW" not in os.environ

    @utils.purge_accelerate_environment
    class Base:
        def helper(self):
            os.environ["ACCELERATE_HELPED"] = "1"

    class Case(Base):
        def test_it(self):
            self.helper()
            assert "ACCELERATE_HELPED" in os.environ

    Case().test_it()
    assert "ACCELERATE_HELPED" not in os.environ
    Case().helper()
    assert os.environ["ACCELERATE_HELPED"] == "1"


def test_lines_for_a_shell():
    with pytest.warns(UserWarning, match="BAD"):
        lines = environment.convert_dict_to_env_variables({"GOOD": "1", "BAD": "a b"})
    assert lines == ["GOOD=1\n"]


def test_the_current_device_type():
    name, distributed_type = utils.get_current_device_type()
    assert distributed_type in list(utils.DistributedType)
    assert torch.device(name).type == name
    assert utils.are_libraries_initialized("torch", "not_imported_at_all") == ["torch"]


# -- versions and availability ----------------------------------------------------------------------------------------


def test_versions():
    assert utils.is_torch_version(">=", "2.0")
    assert not utils.is_torch_version("<", "2.0")
    assert utils.compare_versions("packaging", ">", "1.0")
    with pytest.raises(ValueError, match="=~"):
        utils.compare_versions("torch", "=~", "1.0")


def test_every_availability_is_a_bool():
    questions = [name for name in vars(imports) if name.startswith("is_") and name.endswith("_available")]
    assert len(questions) >= 57
    assert {name: type(getattr(imports, name)()) for name in questions} == dict.fromkeys(questions, bool)
    assert imports.is_habana_gaudi1() is False


def test_availability_asks_for_an_importable_package_with_metadata(tmp_path, monkeypatch):
    assert utils.is_pytest_available() is True
    assert utils.is_numpy_available("1.0") is True
    assert utils.is_numpy_available("1000.0") is False
    (tmp_path / "wandb").mkdir()  # a folder of that name is no installation
    monkeypatch.syspath_prepend(str(tmp_path))
    assert utils.is_wandb_available() is False
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert utils.is_pytest_available() is False


def test_variables_that_switch_libraries(monkeypatch):
    monkeypatch.setenv("USE_TORCH_XLA", "0")
    assert utils.is_torch_xla_available() is False
    with pytest.raises(ValueError, match="both"):
        utils.is_torch_xla_available(check_is_tpu=True, check_is_gpu=True)
    monkeypatch.setattr(imports, "_fits", lambda line: line == "rich")
    assert imports.is_rich_available() is False
    monkeypatch.setenv("ACCELERATE_ENABLE_RICH", "1")
    assert imports.is_rich_available() is True


def test_required_libraries():
    @utils.torchao_required
    def quantise():
        return "done"

    @utils.deepspeed_required
    def engine():
        return "done"

    if not utils.is_torchao_available():
        with pytest.raises(ImportError, match="torchao"):
            quantise()
    assert engine() == "done"  # there is no Accelerator that says otherwise
    Accelerator()
    with pytest.raises(ValueError, match="DeepSpeed"):
        engine()


# -- models and files -------------------------------------------------------------------------------------------------


def test_models_are_unwrapped():
    inner = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    assert utils.extract_model_from_parallel(nn.DataParallel(inner)) is inner
    compiled = torch.compile(inner, backend="eager")
    assert utils.extract_model_from_parallel(compiled) is compiled  # type: ignore[arg-type]
    assert utils.extract_model_from_parallel(compiled, keep_torch_compile=False) is inner  # type: ignore[arg-type]
    outer = nn.Sequential(nn.DataParallel(inner))
    assert utils.extract_model_from_parallel(outer, recursive=True)[0] is inner
    bf16 = Accelerator(mixed_precision="bf16").prepare(nn.Linear(1, 1))
    assert "forward" in vars(bf16)
    assert "forward" not in vars(utils.extract_model_from_parallel(bf16, keep_fp32_wrapper=False))


def test_facts_about_models():
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.ReLU())
    assert [name for name, _ in utils.get_module_children_bottom_up(model, return_fqns=True)] == [
        "0.0", "0.1", "0", "1", "",
    ]  # fmt: skip
    assert utils.get_module_children_bottom_up(model)[-1] is model
    assert utils.get_module_class_from_name(model, "Linear") is nn.Linear  # type: ignore[attr-defined]
    assert utils.get_module_class_from_name(model, "Conv2d") is None  # type: ignore[attr-defined]
    assert not utils.model_has_dtensor(model)
    assert utils.get_model_tp_size(model) is None
    assert not utils.is_compiled_module(model)


def test_files(tmp_path):
    state = {"a": torch.ones(2), "b": torch.zeros(1)}
    for name, safe in (("pickled.bin", False), ("safe.safetensors", True)):
        utils.save(state, tmp_path / name, safe_serialization=safe)
    assert utils.load(tmp_path / "pickled.bin")["a"].tolist() == [1.0, 1.0]
    from safetensors.torch import load_file

    assert load_file(tmp_path / "safe.safetensors")["a"].tolist() == [1.0, 1.0]
    torch.save({"path": Path("x")}, tmp_path / "object.bin")
    with pytest.raises(Exception, match="weights_only|Weights only"):
        utils.load(tmp_path / "object.bin")
    assert utils.load(tmp_path / "object.bin", weights_only=False) == {"path": Path("x")}


def test_shared_memory_is_named_once(caplog):
    tensor = torch.ones(4, 2)
    state = {"first": tensor, "again": tensor, "turned": torch.ones(2, 3).T, "text": "x"}
    with caplog.at_level(logging.WARNING):
        clean = utils.clean_state_dict_for_safetensors(state)
    assert list(clean) == ["first", "turned", "text"]
    assert clean["turned"].is_contiguous()
    assert list(state) == ["first", "again", "turned", "text"]
    assert "again (see first)" in caplog.text


def test_small_tools():
    assert [utils.convert_bytes(n) for n in (0, 1024, 1536, 5 * 2**40, 2**50)] == [
        "0 bytes", "1.0 KB", "1.5 KB", "5.0 TB", "1.0 PB",
    ]  # fmt: skip
    assert utils.merge_dicts({"a": {"x": 1}, "b": 2}, {"a": {"y": 3}, "b": 0}) == {"a": {"x": 1, "y": 3}, "b": 2}
    assert utils.get_pretty_name(nn.Linear) == "Linear"
    assert utils.get_pretty_name(nn.Linear(1, 1)) == "Linear"
    assert utils.recursive_getattr(nn.Linear(2, 1), "weight.shape") == (1, 2)
    port = other.get_free_port()
    assert not utils.is_port_in_use(port)
    utils.wait_for_everyone()
    utils.check_os_kernel()


# -- random state -----------------------------------------------------------------------------------------------------


def test_seeds():
    utils.set_seed(3, device_specific=True)
    first = (random.random(), float(np.random.rand()), torch.rand(1).item())
    utils.set_seed(3)
    assert (random.random(), float(np.random.rand()), torch.rand(1).item()) == first
    utils.synchronize_rng_states(["torch"])
    with pytest.raises(ValueError, match="generator"):
        utils.synchronize_rng_state("generator")
    with pytest.raises(ValueError, match="rng_type"):
        utils.synchronize_rng_state()


# -- logging and tracking ---------------------------------------------------------------------------------------------


def test_the_level_of_a_logger(monkeypatch):
    root = logging.getLogger().level
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "info")
    assert get_logger("accelerate.test.a").logger.level == logging.INFO
    assert get_logger("accelerate.test.b", log_level="ERROR").logger.level == logging.ERROR
    assert logging.getLogger().level == root


def test_own_trackers_are_found_by_name(caplog):
    class Notes(GeneralTracker):
        name = "notes"
        requires_logging_directory = False

        def __init__(self, run_name, **kwargs):
            super().__init__()
            self.lines = [run_name]

        @property
        def tracker(self):
            return self.lines

        def log(self, values, step=None, **kwargs):
            self.lines.append((values, step))

    try:
        assert register_tracker_class(Notes) is Notes
        assert filter_trackers("notes") == ["notes"]
        accelerator = Accelerator(log_with="notes")
        accelerator.init_trackers("run")
        accelerator.log({"loss": 1.0}, step=2)
        assert accelerator.get_tracker("notes", unwrap=True) == ["run", ({"loss": 1.0}, 2)]
        with caplog.at_level(logging.WARNING):
            register_tracker_class(type("Other", (Notes,), {}))
        assert "notes" in caplog.text
    finally:
        registered.pop("notes", None)
    with pytest.raises(ValueError, match="notes"):
        filter_trackers("notes")
    with pytest.raises(ValueError, match="GeneralTracker"):
        register_tracker_class(dict)  # type: ignore[arg-type]


# -- config files -----------------------------------------------------------------------------------------------------


def test_a_basic_config_is_written_once(tmp_path, capsys):
    path = tmp_path / "new" / "config.yaml"
    assert utils.write_basic_config("bf16", path) == path
    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig)
    assert (config.mixed_precision, config.distributed_type.value, config.num_processes >= 1) == (
        "bf16", config.distributed_type.value, True,
    )  # fmt: skip
    assert utils.write_basic_config("no", path) is False
    assert "is there already" in capsys.readouterr().out
    with pytest.raises(ValueError, match="fp4"):
        utils.write_basic_config("fp4", tmp_path / "other.yaml")


def test_config_files_of_older_versions(tmp_path):
    path = tmp_path / "old.json"
    path.write_text('{"distributed_type": "NO", "fp16": true, "dynamo_backend": "INDUCTOR"}')
    config = load_config_from_file(str(path))
    assert (config.mixed_precision, config.num_processes, config.use_cpu) == ("fp16", 1, False)
    assert config.to_dict()["dynamo_config"] == {"dynamo_backend": "INDUCTOR"}
    assert "fsdp_config" not in config.to_dict()
    config.to_yaml_file(tmp_path / "new.yaml")
    config.to_json_file(tmp_path / "new.json")
    assert ClusterConfig.from_yaml_file(str(tmp_path / "new.yaml")) == config
    assert ClusterConfig.from_json_file(str(tmp_path / "new.json")) == config
    with pytest.raises(ValueError, match="SageMakerConfig"):
        SageMakerConfig.from_yaml_file(str(tmp_path / "new.yaml"))


def test_wrong_config_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        load_config_from_file(str(tmp_path / "nowhere.yaml"))
    path = tmp_path / "wrong.yaml"
    path.write_text("distributed_type: 'NO'\nmixed_precison: bf16\n")
    with pytest.raises(ValueError, match="mixed_precision"):
        load_config_from_file(str(path))
    path.write_text("mixed_precision: bf16\n")
    with pytest.raises(ValueError, match="distributed_type"):
        load_config_from_file(str(path))
    assert default_config_file.endswith(os.path.join("accelerate", "default_config.yaml"))
