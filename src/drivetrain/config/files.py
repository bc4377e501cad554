"""Config files: where they are, how the known schema (older keys too) becomes option values, how they are written."""

from __future__ import annotations

import os

from drivetrain.config import environ as env
from drivetrain.config.option import Option
from drivetrain.config.options import BY_NAME, OPTIONS, SAGEMAKER
from drivetrain.config.resolve import Setting
from drivetrain.core.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Section: prefix that its keys may carry or leave out.
SECTIONS = {
    "deepspeed_config": "",
    "fsdp_config": "fsdp_",
    "megatron_lm_config": "megatron_lm_",
    "fp8_config": "fp8_",
    "parallelism_config": "parallelism_config_",
    "dynamo_config": "dynamo_",
    "mpirun_config": "mpirun_",
    "drivetrain": "",
}
# Keys of older files: what they are called now, or None where the setting is gone.
OLD_KEYS: dict[tuple[str, ...], str | None] = {
    ("dynamo_backend",): "dynamo_backend",
    ("fsdp_config", "fsdp_backward_prefetch_policy"): "fsdp_backward_prefetch",
    ("mpirun_config", "mpirun_ccl"): None,
}
OLD_DISTRIBUTED_TYPES = {"TPU": "XLA"}

# What a distributed type of the file switches on.
PARADIGM_OF_TYPE = {
    "NO": None,
    "MULTI_CPU": "cpu",
    "DEEPSPEED": "use_deepspeed",
    "FSDP": "use_fsdp",
    "XLA": "tpu",
    "MEGATRON_LM": "use_megatron_lm",
    "TP": "multi_gpu",
}


def config_folder(environ: Mapping[str, str] | None = None) -> str:
    """Folder of the default config file and of the profiles: ``$HF_HOME/accelerate``, else under the cache folder."""
    source = env.snapshot() if environ is None else environ
    home = source.get("HF_HOME")
    if not home:
        cache = source.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = os.path.join(cache, "huggingface")
    return os.path.join(os.path.expanduser(home), "accelerate")


def default_config_file(environ: Mapping[str, str] | None = None) -> str:
    """Path of the file used when none is named; it need not exist."""
    return os.path.join(config_folder(environ), "default_config.yaml")


def profile_file(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Path of the file that ``--profile name`` means.

    Raises:
        ConfigError: the name is a path.
    """
    if not name or os.path.basename(name) != name or name in (".", ".."):
        raise ConfigError(f"--profile takes a bare name, but got {name!r}. For a path use --config_file.")
    return os.path.join(config_folder(environ), f"{name}.yaml")


def chosen_file(config_file: str | None, profile: str | None, environ: Mapping[str, str] | None = None) -> str | None:
    """The file to read: the named one, the profile's, else the default one if it exists, else None.

    Raises:
        ConfigError: both are given, or the named file does not exist.
    """
    if config_file and profile:
        raise ConfigError(f"config file {config_file!r} and profile {profile!r} are both given. Give one of them.")
    path = config_file or (profile_file(profile, environ) if profile else None)
    if path is None:
        path = default_config_file(environ)
        return path if os.path.isfile(path) else None
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        named = f"profile {profile!r} means" if profile else "named is"
        raise ConfigError(
            f"there is no config file {path} ({named} that file). Write one with: config --config_file {path}"
        )
    return path


def read_file(path: str) -> dict[str, Setting]:
    """The options that a config file sets; each source names the file and the key.

    Raises:
        ConfigError: not readable, not YAML or JSON, an unknown key (with the nearest known one), or a wrong value.
    """
    return layer_of(read_document(path), path)


def read_document(path: str) -> dict[str, Any]:
    """The file's mapping as it stands.

    Raises:
        ConfigError: it cannot be read, or holds no mapping.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}.") from None
    document = _parse(text, path)
    if not isinstance(document, dict):
        raise ConfigError(
            f"config file {path} holds no keys (found {type(document).__name__}). Write `key: value` lines."
        )
    return document


def write_document(document: Mapping[str, Any], path: str) -> None:
    """Write the mapping, sorted by key: JSON if the name ends in .json, else YAML. Creates the folder."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    if path.endswith(".json"):
        import json

        text = json.dumps(dict(document), indent=2, sort_keys=True) + "\n"
    else:
        import yaml

        text = yaml.safe_dump(dict(document))
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(part, path)


def layer_of(document: Mapping[str, Any], path: str) -> dict[str, Setting]:
    """Option name to setting for the keys of ``document``, which was read from ``path``.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    layer: dict[str, Setting] = {}
    cloud = document.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE"
    for key, value in document.items():
        if key in SECTIONS:
            _read_section(str(key), value, path, layer)
        elif key == "fp16":
            if value and not document.get("mixed_precision"):
                layer["mixed_precision"] = Setting("fp16", f"{path}: fp16", True)
        elif key == "distributed_type" and value in OLD_DISTRIBUTED_TYPES:
            _put((key,), OLD_DISTRIBUTED_TYPES[value], path, layer)
        else:
            _put((str(key),), value, path, layer, cloud)
    for name in ("num_processes", "num_machines"):
        if name in layer and layer[name].value == -1:
            del layer[name]
    _paradigm(document, path, layer)
    return layer


def key_owner(key: tuple[str, ...], cloud: bool = True) -> Option | None:
    """The option that a key of the file sets, or None when no option has that key."""
    found = _BY_KEY.get(key)
    if found is None and len(key) == 2 and key[0] in SECTIONS:
        for name in (SECTIONS[key[0]] + key[1], key[1]):
            one = BY_NAME.get(name)
            if one is not None and one.key and key[0] in ("drivetrain", one.key[0]):
                return one
    if found is not None and found.group == SAGEMAKER and not cloud:
        return None
    return found


def known_keys() -> list[str]:
    """Every key of the schema, dotted inside sections."""
    return [".".join(key) for key in _BY_KEY] + list(SECTIONS)


def _parse(text: str, path: str) -> Any:
    if text.lstrip().startswith("{"):  # JSON is quicker to import and to read than YAML
        import json

        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            if path.endswith(".json"):
                raise ConfigError(f"config file {path} is not valid JSON: {error}.") from None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise ConfigError(f"config file {path} is not valid YAML: {where}.") from None


def _read_section(section: str, value: Any, path: str, layer: dict[str, Setting]) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise ConfigError(f"config file {path}: {section} must hold keys of its own, but is {value!r}.")
    for key, inner in value.items():
        _put((section, str(key)), inner, path, layer)


def _put(key: tuple[str, ...], value: Any, path: str, layer: dict[str, Setting], cloud: bool = False) -> None:
    name = OLD_KEYS.get(key, "")
    if name is None:
        return
    one = BY_NAME[name] if name else key_owner(key, cloud)
    dotted = ".".join(key)
    if one is None:
        raise ConfigError(f"config file {path}: unknown key {dotted!r}.{_suggest(key)}")
    if value is not None:
        layer[one.name] = Setting(one.from_value(value, f"config file {path}: {dotted}"), f"{path}: {dotted}", True)


def _suggest(key: tuple[str, ...]) -> str:
    from drivetrain.config.nearest import nearest

    if len(key) == 1:
        return nearest(key[0], known_keys())
    inside = [known[1] for known in _BY_KEY if len(known) == 2 and known[0] == key[0]]
    return nearest(key[1], inside) or nearest(key[1], [one.name for one in OPTIONS])


def _paradigm(document: Mapping[str, Any], path: str, layer: dict[str, Setting]) -> None:
    """Turn the file's distributed type into the switch that the command line has for it."""
    kind = layer.get("distributed_type")
    if kind is not None:
        switch = PARADIGM_OF_TYPE.get(kind.value, "multi_gpu")
        uses_cpu = "cpu" in layer and layer["cpu"].value
        if switch is not None and not (switch == "multi_gpu" and uses_cpu):
            layer[switch] = Setting(True, f"{kind.source} {kind.value}", True)
        if kind.value == "NO" and "num_processes" not in layer:
            layer["num_processes"] = Setting(1, kind.source + " NO", True)
    if document.get("parallelism_config"):
        layer["use_parallelism_config"] = Setting(True, f"{path}: parallelism_config", True)


_BY_KEY: dict[tuple[str, ...], Option] = {one.key: one for one in OPTIONS if one.key}
