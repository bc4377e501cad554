"""The table of every option, declared once: flags, questions, config files, environment and docs derive from it."""

from __future__ import annotations

from drivetrain.config.option import Option
from drivetrain.config.options_backends import AWS, BACKEND_OPTIONS, DEEPSPEED, FP8, FSDP, MEGATRON, MESH, MPI, TPU

GENERAL = "options"
HARDWARE = "Hardware Selection Arguments"
RESOURCES = "Resource Selection Arguments"
PARADIGM = "Training Paradigm Arguments"
MACHINES = "Distributed GPUs"
OWN = "Drivetrain Arguments"
FILE_ONLY = "Config file only"
SAGEMAKER = "Config file only, for SageMaker"

DISTRIBUTED_TYPES = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_HPU",
    "MULTI_NEURON",
    "DEEPSPEED",
    "FSDP",
    "XLA",
    "MEGATRON_LM",
    "TP",
)
DYNAMO_BACKENDS = (
    "no",
    "eager",
    "aot_eager",
    "inductor",
    "aot_ts_nvfuser",
    "nvprims_nvfuser",
    "cudagraphs",
    "ofi",
    "fx2trt",
    "onnxrt",
    "tensorrt",
    "aot_torchxla_trace_once",
    "torhchxla_trace_once",
    "tvm",
)


def _general() -> list[Option]:
    g = GENERAL
    return [
        Option(
            "config_file", "str", None, "YAML or JSON config file to use instead of the default one.", group=g, key=()
        ),
        Option(
            "profile",
            "str",
            None,
            "Use the config file NAME.yaml beside the default one (one file a machine).",
            group=g,
            key=(),
        ),
        Option("quiet", "flag", False, "Print no line of our own about the run.", group=g, short="-q"),
        Option("module", "flag", False, "Run the script as a Python module.", group=g, short="-m"),
        Option("no_python", "flag", False, "Execute the script directly, without a Python in front.", group=g),
        Option(
            "debug",
            "flag",
            False,
            "Check shapes before collectives.",
            group=g,
            env="ACCELERATE_DEBUG_MODE",
            key=("debug",),
        ),
        Option("show_config", "flag", False, "Print every value and where it came from, then stop.", group=g, key=()),
        Option(
            "dry_run", "flag", False, "Print the command and the environment of each rank, then stop.", group=g, key=()
        ),
    ]


def _hardware() -> list[Option]:
    g = HARDWARE
    return [
        Option(
            "cpu",
            "flag",
            False,
            "Run on the CPU; with several processes, as several gloo ranks.",
            group=g,
            env="ACCELERATE_USE_CPU",
            key=("use_cpu",),
            spell="True",
        ),
        Option("multi_gpu", "flag", False, "Run data parallel on several accelerators.", group=g, key=()),
        Option("tpu", "flag", False, "Run on TPUs.", group=g, key=()),
    ]


def _resources() -> list[Option]:
    g = RESOURCES
    dynamo = "ACCELERATE_DYNAMO_"
    return [
        Option(
            "mixed_precision",
            "choice",
            "no",
            "Precision of the forward pass.",
            group=g,
            choices=("no", "fp16", "bf16", "fp8"),
            env="ACCELERATE_MIXED_PRECISION",
            key=("mixed_precision",),
        ),
        Option(
            "num_processes",
            "int",
            None,
            "Processes over all machines together.",
            group=g,
            key=("num_processes",),
        ),
        Option("num_machines", "int", 1, "Machines that take part.", group=g, key=("num_machines",)),
        Option(
            "num_cpu_threads_per_process",
            "int",
            None,
            "OMP_NUM_THREADS of each process; by default the physical cores shared out among the local processes.",
            group=g,
        ),
        Option(
            "enable_cpu_affinity",
            "flag",
            False,
            "Bind each process to the CPU cores near its accelerator.",
            group=g,
            env="ACCELERATE_CPU_AFFINITY",
            key=("enable_cpu_affinity",),
            spell="1",
        ),
        Option(
            "dynamo_backend",
            "choice",
            "no",
            "Compile the model with this backend.",
            group=g,
            choices=DYNAMO_BACKENDS,
            env=dynamo + "BACKEND",
            key=("dynamo_config", "dynamo_backend"),
            spell="upper",
        ),
        Option(
            "dynamo_mode",
            "choice",
            "default",
            "Compilation mode.",
            group=g,
            choices=("default", "reduce-overhead", "max-autotune"),
            env=dynamo + "MODE",
            key=("dynamo_config", "dynamo_mode"),
        ),
        *(
            Option(
                f"dynamo_use_{name}",
                "flag",
                False,
                text,
                group=g,
                env=f"{dynamo}USE_{name.upper()}",
                key=("dynamo_config", f"dynamo_use_{name}"),
                spell="True",
            )
            for name, text in (
                ("fullgraph", "Refuse graph breaks when compiling."),
                ("dynamic", "Compile for dynamic shapes."),
                ("regional_compilation", "Compile the repeated blocks instead of the whole model."),
            )
        ),
        Option(
            "gradient_accumulation_steps",
            "int",
            1,
            "Batches whose gradients are added up before an optimizer step.",
            group=g,
            env="ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            key=("deepspeed_config", "gradient_accumulation_steps"),
        ),
    ]


def _paradigms() -> list[Option]:
    return [
        Option(name, "flag", False, text, group=PARADIGM, env=f"ACCELERATE_{name.upper()}", key=())
        for name, text in (
            ("use_deepspeed", "Train with DeepSpeed."),
            ("use_fsdp", "Train with fully sharded data parallel."),
            ("use_parallelism_config", "Use the parallelism configuration below."),
            ("use_megatron_lm", "Train with Megatron-LM."),
        )
    ]


def _machines() -> list[Option]:
    g = MACHINES
    return [
        Option("gpu_ids", "str", None, 'Accelerators to use, such as "0,1", or "all".', group=g, key=("gpu_ids",)),
        Option(
            "same_network",
            "flag",
            False,
            "All machines are on one network, so the main address is used as it is.",
            group=g,
            key=("same_network",),
        ),
        Option("machine_rank", "int", None, "Number of this machine, from 0.", group=g, key=("machine_rank",)),
        Option("main_process_ip", "str", None, "Address of machine 0.", group=g, key=("main_process_ip",)),
        Option(
            "main_process_port",
            "int",
            None,
            "Port of rank 0; 0 picks a free one. On one machine a taken port is replaced.",
            group=g,
            key=("main_process_port",),
        ),
        Option("tee", "str", "0", "torchrun's --tee; of use together with --log_dir.", group=g, short="-t"),
        Option("log_dir", "str", None, "Folder for the output of each rank, as torchrun's --log-dir.", group=g),
        Option("role", "str", "default", "torchrun's --role, a name in its logs.", group=g),
        Option(
            "rdzv_backend",
            "str",
            "static",
            "torchrun's --rdzv-backend, with several machines.",
            group=g,
            key=("rdzv_backend",),
        ),
        Option("rdzv_conf", "str", "", "torchrun's --rdzv-conf.", group=g),
        Option("max_restarts", "int", 0, "Restarts of all ranks after one has failed.", group=g),
        Option("monitor_interval", "float", 0.1, "Seconds between looks of torchrun's agent at the ranks.", group=g),
    ]


def _own() -> list[Option]:
    g = OWN
    return [
        Option(
            "schedule_unit",
            "choice",
            None,
            "What a schedule counts: optimizer steps, as drivetrain.Accelerator does when nothing is said, or one a "
            "process and step, as accelerate.Accelerator does.",
            group=g,
            choices=("optimizer_step", "process"),
        ),
        Option(
            "keep_low_precision_outputs",
            "flag",
            False,
            "Leave the outputs of mixed precision in low precision instead of float32.",
            group=g,
        ),
        Option(
            "collective_timeout",
            "float",
            None,
            "Seconds until a collective that some rank did not join ends the run with a report.",
            group=g,
        ),
        Option("grace", "float", 60.0, "Seconds ranks have after SIGTERM or SIGINT before they are killed.", group=g),
        Option(
            "start_method",
            "choice",
            "auto",
            "How ranks start: fork them from one process that has imported torch, or as fresh interpreters.",
            group=g,
            choices=("auto", "fork", "fresh"),
        ),
        Option(
            "torch_device",
            "str",
            None,
            "Device of every process, such as cpu or cuda:0, instead of the one chosen.",
            group=g,
            env="ACCELERATE_TORCH_DEVICE",
        ),
    ]


def _file_only() -> list[Option]:
    def plain(
        name: str, default: object, text: str, key: str = "", kind: str = "str", group: str = SAGEMAKER
    ) -> Option:
        return Option(name, kind, default, text, group=group, key=(key or name,), flag=None)

    return [
        Option(
            "compute_environment",
            "choice",
            "LOCAL_MACHINE",
            "Where the run happens.",
            group=FILE_ONLY,
            choices=("LOCAL_MACHINE", "AMAZON_SAGEMAKER"),
            key=("compute_environment",),
            flag=None,
        ),
        Option(
            "distributed_type",
            "choice",
            "NO",
            "Kind of distributed run; the flags under Training Paradigm and Hardware override it.",
            group=FILE_ONLY,
            choices=DISTRIBUTED_TYPES,
            key=("distributed_type",),
            flag=None,
        ),
        plain("tpu_name", None, "Name of the TPU.", group=FILE_ONLY),
        plain("tpu_zone", None, "Zone of the TPU.", group=FILE_ONLY),
        plain("command_file", None, "File with commands to run on the TPU pod.", group=FILE_ONLY),
        plain("commands", None, "Commands to run on the TPU pod.", kind="list", group=FILE_ONLY),
        plain("ec2_instance_type", None, "Instance type."),
        plain("iam_role_name", None, "Role."),
        plain("image_uri", None, "Image."),
        plain("sagemaker_profile", None, "AWS profile.", key="profile"),
        plain("region", "us-east-1", "AWS region."),
        plain("base_job_name", "accelerate-sagemaker-1", "Job name."),
        plain("pytorch_version", "1.10.2", "PyTorch version."),
        plain("transformers_version", "4.17.0", "transformers version."),
        plain("py_version", "py38", "Python version."),
        plain("sagemaker_inputs_file", None, "Table of inputs."),
        plain("sagemaker_metrics_file", None, "Table of metrics."),
        plain("additional_args", None, "Further arguments of the estimator."),
    ]


OPTIONS: tuple[Option, ...] = (
    *_general(),
    *_hardware(),
    *_resources(),
    *_paradigms(),
    *_machines(),
    *BACKEND_OPTIONS,
    *_own(),
    *_file_only(),
)
"""Every option, in the order of the help."""

BY_NAME: dict[str, Option] = {one.name: one for one in OPTIONS}

SHOWN_WITH: dict[str, str] = {
    MACHINES: "multi_gpu",
    TPU: "tpu",
    DEEPSPEED: "use_deepspeed",
    FSDP: "use_fsdp",
    MEGATRON: "use_megatron_lm",
    FP8: "fp8_backend",
    AWS: "aws_access_key_id",
    MPI: "cpu",
    MESH: "use_parallelism_config",
}
"""Groups that the help shows only when this option is on the same command line."""

SECRETS = ("aws_access_key_id", "aws_secret_access_key")
"""Options whose values are neither shown nor handed to the ranks in the JSON."""

LAUNCHER_ONLY = ("quiet", "module", "no_python", "show_config", "dry_run", *SECRETS)
"""Options that mean nothing inside a rank."""


def option(name: str) -> Option:
    """The option called ``name``.

    Raises:
        ConfigError: there is none; the nearest name is given.
    """
    found = BY_NAME.get(name)
    if found is None:
        from drivetrain.config.nearest import nearest
        from drivetrain.core.errors import ConfigError

        raise ConfigError(f"there is no option {name!r}.{nearest(name, BY_NAME)}")
    return found
