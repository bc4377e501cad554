"""How many ranks run where, and whether this version can run what was asked for at all."""

from __future__ import annotations

from drivetrain.core.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain.config.resolve import Settings
    from drivetrain.launch.devices import Devices

# Switches of which one run can have one.
ONE_OF = ("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
# Not together with the CPU, since they name a device themselves.
NEEDS_DEVICE = ("multi_gpu", "tpu")


class Shape:
    """Where the ranks of a run are.

    Attributes:
        processes: ranks over all machines.
        machines: machines that take part.
        machine_rank: number of this machine.
        local: ranks on this machine.
        cpu: whether the ranks use the CPU.
        device_kind: kind of accelerator found, "" where none was looked for or found.
        notes: lines for the user about what was chosen for them.
    """

    __slots__ = ("processes", "machines", "machine_rank", "cpu", "device_kind", "notes")

    def __init__(self, processes: int, machines: int = 1, machine_rank: int = 0, *, cpu: bool = False) -> None:
        self.processes = processes
        self.machines = machines
        self.machine_rank = machine_rank
        self.cpu = cpu
        self.device_kind = ""
        self.notes: list[str] = []

    @property
    def local(self) -> int:
        """Ranks on this machine."""
        return self.processes // self.machines


def shape_of(settings: Settings, look: Callable[[], Devices]) -> Shape:
    """The shape that the settings ask for.

    Args:
        settings: resolved options.
        look: counts the visible accelerators; called only where the answer matters.

    Raises:
        ConfigError: options contradict each other, the machine has too few devices, or nothing here can run it.
    """
    check_together(settings)
    check_runnable(settings)
    machines = settings["num_machines"]
    if machines < 1:
        raise ConfigError(f"--num_machines is {machines}, but a run takes at least 1 machine.")
    processes = settings["num_processes"]
    if processes is not None and processes < 1:
        raise ConfigError(f"--num_processes is {processes}, but a run has at least 1 process.")
    if settings["cpu"]:
        shape = Shape(processes or machines, machines, cpu=True)
    else:
        shape = _on_devices(settings, processes, machines, look())
    if machines > 1:
        _check_machines(settings, shape)
    if settings["enable_cpu_affinity"]:
        shape.notes.append(
            f"enable_cpu_affinity ({settings.source('enable_cpu_affinity')}) has no effect: this version does not bind "
            "processes to cores"
        )
    return shape


def check_together(settings: Settings) -> None:
    """Refuse settings that exclude each other.

    Raises:
        ConfigError: naming both and who set them.
    """
    chosen = [name for name in ONE_OF if settings[name]]
    if settings["cpu"] and any(name in NEEDS_DEVICE for name in chosen):
        chosen.insert(0, "cpu")
    if len(chosen) > 1:
        named = " and ".join(f"{name} ({settings.source(name)})" for name in chosen)
        raise ConfigError(f"{named} exclude each other. Keep one of them.")
    if settings["use_parallelism_config"] and not settings["use_fsdp"]:
        raise ConfigError("use_parallelism_config needs use_fsdp. Add --use_fsdp --fsdp_version 2.")
    if settings["module"] and settings["no_python"]:
        raise ConfigError("--module and --no_python exclude each other: a module needs a Python to run it.")


def check_runnable(settings: Settings) -> None:
    """Refuse a run for which a backend is missing here, rather than run something else.

    Raises:
        ConfigError: naming what was asked for, and what there is.
    """
    wanted = _wanted_strategy(settings)
    if wanted is not None:
        from drivetrain.core.registry import names

        what, accepted = wanted
        known = names("strategies")
        if not any(name in known for name in accepted):
            raise ConfigError(
                f"{what} asks for the strategy {accepted[0]!r}, which this version of drivetrain does not have. "
                f"It has: {', '.join(known)}. Leave that setting out, or install a package that brings the strategy."
            )
    for name, what in (("mpirun_hostfile", "starting through mpirun"), ("tpu_use_cluster", "starting on a TPU pod")):
        if settings[name]:
            raise ConfigError(
                f"{name} ({settings.source(name)}) asks for {what}, which this version of drivetrain cannot do yet. "
                "Start the ranks with your own mpirun or srun: their rank variables are understood."
            )
    if settings["compute_environment"] == "AMAZON_SAGEMAKER":
        raise ConfigError(
            f"{settings.source('compute_environment')} asks for SageMaker, which this version of drivetrain cannot "
            "start yet. Set compute_environment to LOCAL_MACHINE."
        )


def _wanted_strategy(settings: Settings) -> tuple[str, tuple[str, ...]] | None:
    if settings["use_fsdp"]:
        return f"use_fsdp ({settings.source('use_fsdp')})", (f"fsdp{settings['fsdp_version']}", "fsdp")
    for switch, strategy in (("use_deepspeed", "deepspeed"), ("use_megatron_lm", "megatron"), ("tpu", "xla")):
        if settings[switch]:
            return f"{switch} ({settings.source(switch)})", (strategy,)
    return None


def _on_devices(settings: Settings, processes: int | None, machines: int, devices: Devices) -> Shape:
    ids = settings["gpu_ids"]
    available = devices.count
    if ids and ids != "all":
        available = len([one for one in ids.split(",") if one.strip()])
    wanted = processes // machines if processes else None
    if settings["multi_gpu"]:
        _check_several(settings, processes, devices, available)
    if available == 0:
        shape = Shape(processes or machines, machines, cpu=bool(processes and processes > 1))
        if shape.processes > 1:
            shape.notes.append(f"no accelerator found: the {shape.processes} processes run on the CPU, as with --cpu")
        return shape
    if wanted is not None and wanted > available:
        raise ConfigError(
            f"{wanted} processes on this machine (num_processes: {settings.source('num_processes')}) are more than "
            f"its {available} visible accelerator(s). Use --num_processes {available * machines}, or --cpu."
        )
    shape = Shape(processes or available * machines, machines)
    shape.device_kind = devices.kind
    return shape


def _check_several(settings: Settings, processes: int | None, devices: Devices, available: int) -> None:
    source = settings.source("multi_gpu")
    if processes == 1:
        raise ConfigError(
            f"multi_gpu ({source}) needs at least 2 processes, but num_processes "
            f"({settings.source('num_processes')}) is 1. Raise it, or leave multi_gpu out."
        )
    if devices.count == 0:
        number = processes or 2
        raise ConfigError(
            f"multi_gpu ({source}) needs accelerators, but this machine shows none. To run {number} processes on the "
            f"CPU, use: --cpu --num_processes {number}"
        )
    if settings["num_machines"] == 1 and available < 2:
        raise ConfigError(
            f"multi_gpu ({source}) needs at least 2 accelerators on one machine, but {available} is to be used. "
            "Leave multi_gpu out to run on one, or list more in --gpu_ids."
        )


def _check_machines(settings: Settings, shape: Shape) -> None:
    if settings["num_processes"] is None:
        raise ConfigError(
            "several machines need --num_processes, the number of processes over all machines: each machine must be "
            "told the same."
        )
    if shape.processes % shape.machines:
        raise ConfigError(
            f"{shape.processes} processes cannot be shared evenly among {shape.machines} machines. Make "
            "--num_processes a multiple of --num_machines."
        )
    rank = settings["machine_rank"]
    if rank is None:
        raise ConfigError("several machines need --machine_rank on each of them, counting from 0.")
    if not 0 <= rank < shape.machines:
        raise ConfigError(
            f"--machine_rank is {rank}, but with {shape.machines} machines it is 0 to {shape.machines - 1}."
        )
    for name in ("main_process_ip", "main_process_port"):
        if settings[name] is None:
            raise ConfigError(f"several machines need --{name}, the same on each of them: where machine 0 listens.")
    shape.machine_rank = rank
