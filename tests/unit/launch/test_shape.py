"""How many ranks run where, and what is refused instead of being run differently."""

import pytest

from drivetrain.config.resolve import resolve
from drivetrain.core.errors import ConfigError
from drivetrain.launch.devices import Devices
from drivetrain.launch.shape import shape_of

MACHINES = {"num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1", "main_process_port": 1234}


def _shape(devices=0, **values):
    kind = "cuda" if devices else ""
    return shape_of(resolve(cli=values), lambda: Devices(kind, devices))


@pytest.mark.parametrize(
    ("devices", "values", "processes", "cpu"),
    [
        (0, {}, 1, False),
        (0, {"cpu": True}, 1, True),
        (0, {"cpu": True, "num_processes": 4}, 4, True),
        (8, {"cpu": True, "num_processes": 2}, 2, True),
        (0, {"num_processes": 1}, 1, False),
        (1, {}, 1, False),
        (4, {}, 4, False),
        (4, {"num_processes": 2}, 2, False),
        (4, {"multi_gpu": True}, 4, False),
        (4, {"gpu_ids": "1,3"}, 2, False),
        (4, {"gpu_ids": "all", "num_processes": 3}, 3, False),
    ],
)
def test_on_one_machine(devices, values, processes, cpu):
    shape = _shape(devices, **values)
    assert (shape.processes, shape.local, shape.machines, shape.cpu) == (processes, processes, 1, cpu)
    assert shape.notes == []


def test_several_processes_without_accelerators_run_on_the_cpu_and_say_so():
    shape = _shape(0, num_processes=2)
    assert shape.processes == 2 and shape.cpu
    assert shape.notes == ["no accelerator found: the 2 processes run on the CPU, as with --cpu"]


def test_what_has_no_effect_is_said():
    (note,) = _shape(0, cpu=True, enable_cpu_affinity=True).notes
    assert note.startswith("enable_cpu_affinity (command line) has no effect")


def test_several_machines():
    shape = _shape(cpu=True, num_processes=6, **MACHINES)
    assert (shape.processes, shape.local, shape.machine_rank) == (6, 3, 1)


@pytest.mark.parametrize(
    ("devices", "values", "said"),
    [
        (
            0,
            {"multi_gpu": True, "num_processes": 2},
            "none. To run 2 processes on the CPU, use: --cpu --num_processes 2",
        ),
        (0, {"multi_gpu": True}, "use: --cpu --num_processes 2"),
        (4, {"multi_gpu": True, "num_processes": 1}, "needs at least 2 processes"),
        (1, {"multi_gpu": True, "num_processes": 2}, "needs at least 2 accelerators"),
        (4, {"multi_gpu": True, "gpu_ids": "3"}, "but 1 is to be used"),
        (2, {"num_processes": 4}, "more than its 2 visible accelerator"),
        (4, {"num_processes": 3, "gpu_ids": "0,1"}, "more than its 2 visible accelerator"),
        (0, {"num_processes": 0}, "at least 1 process"),
        (0, {"cpu": True, "num_machines": 0}, "at least 1 machine"),
        (2, {"cpu": True, "multi_gpu": True}, r"cpu \(command line\) and multi_gpu .* exclude each other"),
        (2, {"use_fsdp": True, "use_deepspeed": True}, "exclude each other"),
        (2, {"cpu": True, "use_fsdp": True, "use_deepspeed": True}, "exclude each other"),
        (2, {"use_parallelism_config": True}, "needs use_fsdp"),
        (2, {"module": True, "no_python": True}, "exclude each other"),
        (2, {"use_megatron_lm": True}, "asks for the strategy 'megatron'.* It has: .*ddp"),
        (0, {"cpu": True, "mpirun_hostfile": "x"}, "starting through mpirun"),
        (0, {"compute_environment": "AMAZON_SAGEMAKER"}, "SageMaker"),
        (0, {"cpu": True, "num_processes": 3, **MACHINES}, "cannot be shared evenly among 2"),
        (0, {"cpu": True, **MACHINES}, "need --num_processes"),
        (0, {"cpu": True, "num_processes": 2, **MACHINES, "machine_rank": 2}, "it is 0 to 1"),
        (0, {"cpu": True, "num_processes": 2, **MACHINES, "machine_rank": None}, "need --machine_rank"),
        (0, {"cpu": True, "num_processes": 2, **MACHINES, "main_process_ip": None}, "need --main_process_ip"),
        (0, {"cpu": True, "num_processes": 2, **MACHINES, "main_process_port": None}, "need --main_process_port"),
    ],
)
def test_refused(devices, values, said):
    with pytest.raises(ConfigError, match=said):
        _shape(devices, **values)


def test_a_strategy_that_exists_is_accepted(monkeypatch):
    monkeypatch.setattr("drivetrain.core.registry.names", lambda kind: ["ddp", "fsdp2"])
    assert _shape(2, use_fsdp=True, fsdp_version="2").processes == 2
    with pytest.raises(ConfigError, match="'fsdp1'"):
        _shape(2, use_fsdp=True, fsdp_version="1")
