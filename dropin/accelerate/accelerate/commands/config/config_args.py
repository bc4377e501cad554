"""Config files as objects, for programs that read or write them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from drivetrain.config import files
from drivetrain.config.enums import ComputeEnvironment, DistributedType, SageMakerDistributedType
from drivetrain.core.errors import ConfigError

cache_dir = files.config_folder()
hf_cache_home = os.path.dirname(cache_dir)
default_config_file = default_yaml_config_file = default_json_config_file = files.default_config_file()


@dataclass
class BaseConfig:
    """What every config file says."""

    compute_environment: ComputeEnvironment
    distributed_type: DistributedType | SageMakerDistributedType
    mixed_precision: str | None
    use_cpu: bool
    debug: bool

    def __post_init__(self) -> None:
        self.compute_environment = ComputeEnvironment(self.compute_environment)
        local = self.compute_environment is ComputeEnvironment.LOCAL_MACHINE
        self.distributed_type = (DistributedType if local else SageMakerDistributedType)(self.distributed_type)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the file that say something."""
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None and value != {}}

    def to_json_file(self, json_file: str | os.PathLike[str]) -> None:
        """Write the file as JSON."""
        import json

        with open(json_file, "w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n")

    def to_yaml_file(self, yaml_file: str | os.PathLike[str]) -> None:
        """Write the file as YAML."""
        import yaml

        with open(yaml_file, "w", encoding="utf-8") as file:
            yaml.safe_dump(self.to_dict(), file)

    @classmethod
    def from_json_file(cls, json_file: str | None = None) -> Any:
        """The config in a file; None: the default one."""
        return cls._read(json_file)

    @classmethod
    def from_yaml_file(cls, yaml_file: str | None = None) -> Any:
        """The config in a file; None: the default one."""
        return cls._read(yaml_file)

    @classmethod
    def _read(cls, path: str | None) -> Any:
        config = load_config_from_file(path)
        if not isinstance(config, cls):
            raise ConfigError(f"{path or default_config_file} holds a {type(config).__name__}, not a {cls.__name__}.")
        return config


@dataclass
class ClusterConfig(BaseConfig):
    """A run on machines of one's own."""

    num_processes: int = -1
    machine_rank: int = 0
    num_machines: int = 1
    gpu_ids: str | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str | None = "static"
    same_network: bool | None = False
    main_training_function: str = "main"
    enable_cpu_affinity: bool = False
    fp8_config: dict[str, Any] | None = None
    deepspeed_config: dict[str, Any] | None = None
    fsdp_config: dict[str, Any] | None = None
    parallelism_config: dict[str, Any] | None = None
    megatron_lm_config: dict[str, Any] | None = None
    mpirun_config: dict[str, Any] | None = None
    downcast_bf16: bool | str = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    tpu_use_cluster: bool = False
    tpu_use_sudo: bool = False
    command_file: str | None = None
    commands: list[str] | None = None
    tpu_vm: list[str] | None = None
    tpu_env: list[str] | None = None
    dynamo_config: dict[str, Any] | None = None
    drivetrain: dict[str, Any] | None = None
    """Options that only drivetrain has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in fields(self):
            if one.name.endswith("_config") and getattr(self, one.name) is None:
                setattr(self, one.name, {})


@dataclass
class SageMakerConfig(BaseConfig):
    """A run on SageMaker. Such a file can be read and written; starting one is not available in this version."""

    ec2_instance_type: str
    iam_role_name: str
    image_uri: str | None = None
    profile: str | None = None
    region: str = "us-east-1"
    num_machines: int = 1
    gpu_ids: str = "all"
    base_job_name: str = "accelerate-sagemaker-1"
    pytorch_version: str = "1.10.2"
    transformers_version: str = "4.17.0"
    py_version: str = "py38"
    sagemaker_inputs_file: str | None = None
    sagemaker_metrics_file: str | None = None
    additional_args: dict[str, Any] | None = None
    dynamo_config: dict[str, Any] | None = None
    enable_cpu_affinity: bool = False


def load_config_from_file(config_file: str | None) -> ClusterConfig | SageMakerConfig:
    """The config in a YAML or JSON file; None: the default one.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it holds an unknown key, or a value that its key cannot have.
    """
    path = default_config_file if config_file is None else os.path.expanduser(config_file)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"there is no config file {path}. Write it with: accelerate config --config_file {path}"
        )
    document = files.read_document(path)
    files.layer_of(document, path)
    document = _today(document, path)
    local = document["compute_environment"] == ComputeEnvironment.LOCAL_MACHINE.value
    return ClusterConfig(**document) if local else SageMakerConfig(**document)


def _today(document: dict[str, Any], path: str) -> dict[str, Any]:
    """``document`` with the keys of older files in the form they have now, and those that every config has."""
    out = {"compute_environment": ComputeEnvironment.LOCAL_MACHINE.value, **document}
    if "distributed_type" not in out:
        known = ", ".join(kind.value for kind in DistributedType)
        raise ConfigError(f"config file {path} does not say distributed_type. Add one of {known}.")
    out["distributed_type"] = files.OLD_DISTRIBUTED_TYPES.get(out["distributed_type"], out["distributed_type"])
    if out["distributed_type"] == "NO":
        out.setdefault("num_processes", 1)
    half = out.pop("fp16", False)
    out.setdefault("mixed_precision", "fp16" if half else None)
    backend = out.pop("dynamo_backend", None)
    if backend is not None:
        out["dynamo_config"] = {} if str(backend).upper() == "NO" else {"dynamo_backend": backend}
    for name in ("use_cpu", "debug", "enable_cpu_affinity"):
        out.setdefault(name, False)
    return out
