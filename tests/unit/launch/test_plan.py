"""Plans are pure, and equal what is recorded here."""

import json
import sys

import pytest

from drivetrain.config.resolve import in_process, resolve
from drivetrain.launch.base import Command, merged
from drivetrain.launch.handover import physical_cores, threads, variables, visibility
from drivetrain.launch.local import LocalLauncher
from drivetrain.launch.machines import MachinesLauncher
from drivetrain.launch.shape import Shape
from drivetrain.launch.single import SingleLauncher

SCRIPT = Command("train.py", ["--lr", "1"])


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (SCRIPT, [sys.executable, "train.py", "--lr", "1"]),
        (Command("pkg.train", ["x"], module=True), [sys.executable, "-m", "pkg.train", "x"]),
        (Command("./run", ["x"], no_python=True), ["./run", "x"]),
    ],
)
def test_one_process(command, argv):
    settings = resolve(cli={"cpu": True, "mixed_precision": "bf16", "num_cpu_threads_per_process": 3})
    plan = SingleLauncher().plan(Shape(1, cpu=True), settings, command, {"DRIVETRAIN_CPU": "0"})
    assert plan.argv == argv and plan.ranks == [] and plan.port is None
    assert json.loads(plan.env.pop("DRIVETRAIN_CONFIG") or "") == settings.changed()
    assert plan.env == {
        "ACCELERATE_USE_CPU": "True",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "OMP_NUM_THREADS": "3",
        "DRIVETRAIN_CPU": None,
    }


def test_two_ranks():
    settings = resolve(cli={"cpu": True, "main_process_port": 1234})
    plan = LocalLauncher().plan(Shape(2, cpu=True), settings, SCRIPT, {"OMP_NUM_THREADS": "5"})
    assert plan.argv == [sys.executable, "train.py", "--lr", "1"]
    assert plan.ranks == [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}]
    assert plan.port == 1234
    del plan.env["DRIVETRAIN_CONFIG"]
    assert plan.env == {
        "ACCELERATE_USE_CPU": "True",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    text = plan.text()
    assert "MASTER_PORT=1234" in text and text.splitlines()[-1] == "rank 1: RANK=1 LOCAL_RANK=1"


def _agent_flags(**values):
    base = {"cpu": True, "num_machines": 2, "main_process_ip": "10.0.0.1", "main_process_port": 1234}
    settings = resolve(cli=base | values)
    shape = Shape(4, 2, 1, cpu=True)
    plan = MachinesLauncher().plan(shape, settings, Command("train.py", ["--lr", "1"]), {})
    start = plan.argv.index("torch.distributed.run") + 1
    end = next(i for i in range(start, len(plan.argv)) if not plan.argv[i].startswith("--"))
    return plan, dict(one[2:].split("=", 1) for one in plan.argv[start:end]), plan.argv[end + 1 :]


def test_several_machines():
    plan, agent, rest = _agent_flags()
    assert agent == {
        "nnodes": "2",
        "nproc-per-node": "2",
        "node-rank": "1",
        "rdzv-backend": "static",
        "rdzv-endpoint": "10.0.0.1:1234",
        "max-restarts": "0",
        "monitor-interval": "0.1",
        "role": "default",
        "tee": "0",
    }
    assert rest == ["-", "{reports}", "-", "script", "train.py", "--lr", "1"]
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in plan.env


def test_options_of_the_agent():
    plan, agent, _ = _agent_flags(
        same_network=True, rdzv_backend="c10d", rdzv_conf="a=1", log_dir="logs", max_restarts=3, tee="3", role="r"
    )
    assert "rdzv-endpoint" not in agent
    assert {
        name: agent[name] for name in ("master-addr", "master-port", "rdzv-conf", "log-dir", "max-restarts", "tee")
    } == {
        "master-addr": "10.0.0.1",
        "master-port": "1234",
        "rdzv-conf": "a=1",
        "log-dir": "logs",
        "max-restarts": "3",
        "tee": "3",
    }
    assert plan.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert _agent_flags(grace=4.5)[0].env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "5"  # the agent kills at that time


# --- what the ranks are told -----------------------------------------------------------------------------------------


def test_only_what_was_set_is_exported():
    assert variables(resolve(), {}) == {"DRIVETRAIN_CONFIG": "{}"}
    env = variables(resolve(cli={"gradient_accumulation_steps": 4, "debug": True, "enable_cpu_affinity": True}), {})
    assert env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"
    assert env["ACCELERATE_DEBUG_MODE"] == "true" and env["ACCELERATE_CPU_AFFINITY"] == "1"


def test_a_default_that_was_asked_for_replaces_a_variable():
    """`--mixed_precision no` must win over a variable that says bf16."""
    settings = resolve(cli={"mixed_precision": "no"})
    assert variables(settings, {"ACCELERATE_MIXED_PRECISION": "bf16"})["ACCELERATE_MIXED_PRECISION"] == "no"


def test_a_backend_gets_its_whole_group():
    env = variables(resolve(cli={"use_fsdp": True, "fsdp_version": "2"}), {})
    expected = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_OFFLOAD_PARAMS": "false",
        "FSDP_MIN_NUM_PARAMS": "100000000",
        "FSDP_FORWARD_PREFETCH": "false",
        "FSDP_USE_ORIG_PARAMS": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_SYNC_MODULE_STATES": "true",
    }
    assert {name: env[name] for name in expected} == expected
    assert "FSDP_AUTO_WRAP_POLICY" not in env and "MEGATRON_LM_TP_DEGREE" not in env


def test_fp8_and_dynamo_groups():
    env = variables(resolve(cli={"mixed_precision": "fp8", "fp8_backend": "ao", "dynamo_backend": "inductor"}), {})
    assert env["ACCELERATE_FP8_BACKEND"] == "ao" and env["ACCELERATE_FP8_PAD_INNER_DIM"] == "1"
    assert env["ACCELERATE_FP8_OVERRIDE_FPROP"] == "false"
    assert env["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR" and env["ACCELERATE_DYNAMO_USE_DYNAMIC"] == "False"


def test_deepspeed_fields_are_those_of_the_file(tmp_path):
    from drivetrain.config.gather import gather

    path = tmp_path / "c.yaml"
    path.write_text("distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 3}\n")
    from drivetrain.config.resolve import Setting

    settings, _ = gather({"config_file": Setting(str(path), "x"), "gradient_clipping": Setting(1.0, "x")}, {})
    env = variables(settings, {})
    assert env["ACCELERATE_CONFIG_DS_FIELDS"] == "zero_stage,mixed_precision"
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true" and env["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"


@pytest.mark.parametrize("contract_names", [True, False])
def test_a_rank_sees_what_the_launcher_resolved(monkeypatch, contract_names):
    """Also where the launcher's own environment said otherwise."""
    before = {"DRIVETRAIN_MIXED_PRECISION": "fp16", "ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_USE_CPU": "true"}
    wanted = {
        "mixed_precision": "no",
        "cpu": False,
        "fp8_override_linear_precision": (True, False, False),
        "grace": 1.5,
    }
    env = merged(before, variables(resolve(cli=wanted), before))
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    seen = in_process({}, contract_names=contract_names)
    assert {name: seen[name] for name in wanted} == wanted


def test_devices_to_use():
    settings = resolve(cli={"gpu_ids": "1,2"})
    assert visibility(settings, "cuda") == {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert visibility(settings, "npu") == {"ASCEND_RT_VISIBLE_DEVICES": "1,2"}
    assert visibility(settings, "") == {"CUDA_VISIBLE_DEVICES": "1,2"}
    by_file = resolve(cli={"gpu_ids": "1", "distributed_type": "MULTI_XPU"})
    assert visibility(by_file, "") == {"ZE_AFFINITY_MASK": "1"}
    assert visibility(resolve(cli={"gpu_ids": "all"}), "cuda") == {}


def test_threads_of_a_rank():
    flag = resolve(cli={"num_cpu_threads_per_process": 3})
    assert threads(flag, {"OMP_NUM_THREADS": "7"}, 2) == {"OMP_NUM_THREADS": "3"}
    assert threads(resolve(), {"OMP_NUM_THREADS": "7"}, 2) == {}
    assert threads(resolve(), {}, 1) == {}
    cores = physical_cores()
    assert threads(resolve(), {}, 2) == {"OMP_NUM_THREADS": str(max(1, cores // 2))}
    assert threads(resolve(), {}, 10 * cores) == {"OMP_NUM_THREADS": "1"}
