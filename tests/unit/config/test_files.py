"""Config files of the established format, old ones too, are read as they are; what is wrong is named."""

import json

import pytest

from drivetrain.config import files
from drivetrain.config.options import OPTIONS
from drivetrain.core.errors import ConfigError


def _read(tmp_path, text, name="c.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return files.read_file(str(path))


def _values(layer):
    return {name: one.value for name, one in layer.items()}


FULL = """
compute_environment: LOCAL_MACHINE
debug: true
deepspeed_config: {}
distributed_type: MULTI_GPU
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: reduce-overhead
  dynamo_use_fullgraph: true
enable_cpu_affinity: true
fp8_config:
  backend: TE
  amax_history_length: 16
  amax_compute_algorithm: max
  optimization_level: O1
  fp8_format: E4M3
  override_linear_precision: [true, false, false]
gpu_ids: 0,1
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 1234
main_training_function: train
megatron_lm_config: {megatron_lm_tp_degree: 2, sequence_parallelism: true}
mixed_precision: bf16
mpirun_config: {mpirun_hostfile: hosts, mpirun_ccl: '1'}
num_machines: 2
num_processes: 4
parallelism_config: {parallelism_config_tp_size: 2, cp_size: 1}
rdzv_backend: c10d
same_network: true
tpu_env: [A=1]
tpu_use_cluster: false
tpu_use_sudo: true
use_cpu: false
"""


def test_all_kinds_of_keys_count(tmp_path):
    assert _values(_read(tmp_path, FULL)) == {
        "compute_environment": "LOCAL_MACHINE",
        "debug": True,
        "distributed_type": "MULTI_GPU",
        "multi_gpu": True,
        "downcast_bf16": False,
        "dynamo_backend": "inductor",
        "dynamo_mode": "reduce-overhead",
        "dynamo_use_fullgraph": True,
        "enable_cpu_affinity": True,
        "fp8_backend": "te",
        "fp8_amax_history_len": 16,
        "fp8_amax_compute_algo": "max",
        "fp8_opt_level": "O1",
        "fp8_format": "E4M3",
        "fp8_override_linear_precision": (True, False, False),
        "gpu_ids": "0,1",
        "machine_rank": 1,
        "main_process_ip": "10.0.0.1",
        "main_process_port": 1234,
        "main_training_function": "train",
        "megatron_lm_tp_degree": 2,
        "megatron_lm_sequence_parallelism": True,
        "mixed_precision": "bf16",
        "mpirun_hostfile": "hosts",
        "num_machines": 2,
        "num_processes": 4,
        "parallelism_config_tp_size": 2,
        "parallelism_config_cp_size": 1,
        "use_parallelism_config": True,
        "rdzv_backend": "c10d",
        "same_network": True,
        "env": ["A=1"],
        "tpu_use_cluster": False,
        "tpu_use_sudo": True,
        "cpu": False,
    }


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("distributed_type: 'NO'\nfp16: true", {"mixed_precision": "fp16", "num_processes": 1}),
        ("distributed_type: 'NO'\nfp16: true\nmixed_precision: bf16", {"mixed_precision": "bf16"}),
        ("distributed_type: 'NO'\nfp16: false\nmixed_precision:", {"mixed_precision": None}),
        ("distributed_type: 'NO'\ndynamo_backend: INDUCTOR", {"dynamo_backend": "inductor"}),
        ("distributed_type: MULTI_CPU\nnum_processes: 2", {"cpu": True, "num_processes": 2}),
        ("distributed_type: MULTI_XPU\nnum_processes: -1", {"multi_gpu": True, "num_processes": None}),
        ("distributed_type: MULTI_GPU\nuse_cpu: true", {"multi_gpu": None, "cpu": True}),
        (
            "distributed_type: FSDP\nfsdp_config: {offload_params: true}",
            {"use_fsdp": True, "fsdp_offload_params": True},
        ),
        ("fsdp_config: {fsdp_backward_prefetch_policy: BACKWARD_PRE}", {"fsdp_backward_prefetch": "BACKWARD_PRE"}),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}", {"use_deepspeed": True, "zero_stage": 3}),
        ("distributed_type: TPU", {"tpu": True, "distributed_type": "XLA"}),
        ("drivetrain: {grace: 5, max_restarts: 2, gradient_accumulation_steps: 4}", {"grace": 5.0, "max_restarts": 2}),
        ("parallelism_config: {}", {"use_parallelism_config": None}),
        ("fsdp_config:", {"use_fsdp": None}),
        (
            "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nec2_instance_type: p3\nprofile: me",
            {"ec2_instance_type": "p3", "sagemaker_profile": "me"},
        ),
    ],
)
def test_single_keys(tmp_path, text, values):
    found = _values(_read(tmp_path, text))
    assert {name: found.get(name) for name in values} == values


def test_json_counts_whatever_the_name(tmp_path):
    text = json.dumps({"distributed_type": "NO", "mixed_precision": "bf16"})
    for name in ("c.json", "c.yaml"):
        assert _values(_read(tmp_path, text, name))["mixed_precision"] == "bf16"


def test_the_source_is_file_and_key(tmp_path):
    layer = _read(tmp_path, "fsdp_config: {fsdp_version: 2}")
    assert layer["fsdp_version"].source == f"{tmp_path / 'c.yaml'}: fsdp_config.fsdp_version"
    assert layer["fsdp_version"].in_file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixed_precison: bf16", "unknown key 'mixed_precison'. Did you mean 'mixed_precision'?"),
        ("fsdp_config: {fsdp_versin: 2}", "unknown key 'fsdp_config.fsdp_versin'. Did you mean 'fsdp_version'?"),
        ("fsdp_config: {zero_stage: 2}", "unknown key 'fsdp_config.zero_stage'. Did you mean 'zero_stage'?"),
        ("drivetrain: {gracee: 2}", "unknown key 'drivetrain.gracee'. Did you mean 'grace'?"),
        ("ec2_instance_type: p3", "unknown key 'ec2_instance_type'"),
        ("mixed_precision: bf17", "mixed_precision is 'bf17'; choose one of"),
        ("distributed_type: MULTI", "distributed_type is 'MULTI'; choose one of"),
        ("fsdp_config: 3", "fsdp_config must hold keys of its own, but is 3"),
        ("just text", "holds no keys"),
        ("", "holds no keys"),
        ("a: [", "not valid YAML"),
        ("17: x", "unknown key '17'"),
    ],
)
def test_one_line_names_file_key_and_what_is_right(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, text)
    message = str(caught.value)
    assert said in message and str(tmp_path / "c.yaml") in message and "\n" not in message


def test_broken_json_is_named(tmp_path):
    with pytest.raises(ConfigError, match="c.json is not valid JSON"):
        _read(tmp_path, "{", "c.json")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HOME": "/a"}, "/a/accelerate"),
        ({"HF_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a/accelerate"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/huggingface/accelerate"),
        ({}, "HOME/.cache/huggingface/accelerate"),
        ({"HF_HOME": "~/x"}, "HOME/x/accelerate"),
    ],
)
def test_where_config_files_are(monkeypatch, variables, folder):
    monkeypatch.setenv("HOME", "HOME")
    assert files.config_folder(variables) == folder
    assert files.default_config_file(variables) == f"{folder}/default_config.yaml"
    assert files.profile_file("gpu8", variables) == f"{folder}/gpu8.yaml"


def test_which_file_is_read(tmp_path):
    variables = {"HF_HOME": str(tmp_path)}
    assert files.chosen_file(None, None, variables) is None
    default = tmp_path / "accelerate" / "default_config.yaml"
    default.parent.mkdir()
    default.write_text("use_cpu: true")
    assert files.chosen_file(None, None, variables) == str(default)
    assert files.chosen_file(str(default), None, variables) == str(default)
    (default.parent / "big.yaml").write_text("use_cpu: true")
    assert files.chosen_file(None, "big", variables) == str(default.parent / "big.yaml")


@pytest.mark.parametrize(
    ("named", "profile", "said"),
    [
        ("/nowhere/x.yaml", None, "there is no config file /nowhere/x.yaml"),
        (None, "gpu8", "profile 'gpu8' means"),
        ("/a", "b", "both given"),
        (None, "../x", "takes a bare name"),
        (None, "..", "takes a bare name"),
    ],
)
def test_a_missing_file_is_named(tmp_path, named, profile, said):
    with pytest.raises(ConfigError, match=said):
        files.chosen_file(named, profile, {"HF_HOME": str(tmp_path)})


@pytest.mark.parametrize("name", ["new/c.yaml", "new/c.json"])
def test_written_files_are_read_back(tmp_path, name):
    document = {"distributed_type": "NO", "fsdp_config": {"fsdp_version": "2"}, "num_processes": 3}
    path = str(tmp_path / name)
    files.write_document(document, path)
    assert files.read_document(path) == document
    assert [one.name for one in (tmp_path / "new").iterdir()] == [name.removeprefix("new/")]


@pytest.mark.parametrize("one", [one for one in OPTIONS if one.key], ids=lambda one: one.name)
def test_every_option_can_be_set_in_a_file(one):
    assert files.key_owner(one.key) is one
    assert files.key_owner(("drivetrain", one.name)) is one
