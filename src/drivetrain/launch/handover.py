"""The variables that ranks get: our JSON, and the contract's names for the libraries that read those."""

from __future__ import annotations

from drivetrain.config.options import OPTIONS
from drivetrain.config.options_backends import DEEPSPEED, FP8, FSDP, MEGATRON, MESH
from drivetrain.config.resolve import HANDOVER
from drivetrain.launch.devices import VISIBILITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain.config.option import Option
    from drivetrain.config.resolve import Settings

# Their consumers read the whole group, so once the switch is on the defaults are written as well.
GROUP_SWITCH = {
    FSDP: "use_fsdp",
    DEEPSPEED: "use_deepspeed",
    MEGATRON: "use_megatron_lm",
    MESH: "use_parallelism_config",
}
DEEPSPEED_FIELDS = "ACCELERATE_CONFIG_DS_FIELDS"


def variables(settings: Settings, environ: Mapping[str, str]) -> dict[str, str | None]:
    """What to set (None: remove) on top of ``environ`` so that a rank sees exactly ``settings``.

    Options that nothing set are left out. Our own variables are removed, since the JSON holds their values and
    whatever overruled them.
    """
    env: dict[str, str | None] = {HANDOVER: settings.handover()}
    for one in OPTIONS:
        if one.own_env in environ:
            env[one.own_env] = None
        if one.env is not None and (settings.explicit(one.name) or _switched_on(one, settings)):
            _export(one, settings[one.name], env)
    if settings["use_deepspeed"]:
        fields = [one.name for one in OPTIONS if one.group == DEEPSPEED and settings.in_file(one.name)]
        fields += ["mixed_precision"] if settings.in_file("mixed_precision") else []
        env[DEEPSPEED_FIELDS] = ",".join(fields)
    return env


def visibility(settings: Settings, device_kind: str) -> dict[str, str | None]:
    """The vendor's variable for ``--gpu_ids``; empty where all devices may be used."""
    ids = settings["gpu_ids"]
    if not ids or ids == "all":
        return {}
    kind = settings["distributed_type"].removeprefix("MULTI_").lower()
    return {VISIBILITY.get(kind) or VISIBILITY.get(device_kind) or "CUDA_VISIBLE_DEVICES": ids}


def threads(settings: Settings, environ: Mapping[str, str], local: int) -> dict[str, str | None]:
    """``OMP_NUM_THREADS`` for each of ``local`` ranks.

    The flag wins over a variable that is there already. Without either, several ranks share the physical cores, and
    a single process keeps what its libraries choose.
    """
    number = settings["num_cpu_threads_per_process"]
    if number is None and (local == 1 or environ.get("OMP_NUM_THREADS")):
        return {}
    if number is None:
        number = max(1, physical_cores() // local)
    return {"OMP_NUM_THREADS": str(number)}


def physical_cores() -> int:
    """Physical cores that this process may use; where the system does not tell, its logical ones."""
    import os

    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    cores = set()
    for cpu in allowed:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores) or 1


def _export(one: Option, value: object, env: dict[str, str | None]) -> None:
    if isinstance(one.env, tuple):
        assert isinstance(value, tuple)
        for name, item in zip(one.env, value, strict=True):
            env[name] = one.to_text(item)
    elif one.env is not None and value is not None:
        env[one.env] = one.to_text(value)


def _switched_on(one: Option, settings: Settings) -> bool:
    if one.group == FP8:
        return settings["mixed_precision"] == "fp8"
    if one.name.startswith("dynamo_"):
        return settings["dynamo_backend"] != "no"
    switch = GROUP_SWITCH.get(one.group)
    return switch is not None and bool(settings[switch])
