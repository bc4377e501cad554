"""The part of the option table that belongs to single backends, such as DeepSpeed, FSDP, Megatron-LM and fp8."""

from __future__ import annotations

from drivetrain.config.option import Option

TPU = "TPU"
DEEPSPEED = "DeepSpeed Arguments"
FSDP = "FSDP Arguments"
MEGATRON = "Megatron-LM Arguments"
FP8 = "FP8 Arguments"
AWS = "AWS Arguments"
MPI = "MPI Arguments"
MESH = "ParallelismConfig Arguments"


def _tpu() -> list[Option]:
    g = TPU
    return [
        Option(
            "tpu_use_cluster", "flag", False, "Use a TPU pod.", group=g, key=("tpu_use_cluster",), flag="--tpu_cluster"
        ),
        Option("tpu_use_sudo", "flag", False, "Use sudo inside the pod's machines.", group=g, key=("tpu_use_sudo",)),
        Option("vm", "list", None, "Name of a pod machine; may be repeated.", group=g, key=("tpu_vm",)),
        Option("env", "list", None, "KEY=VALUE for the pod's machines; may be repeated.", group=g, key=("tpu_env",)),
        Option(
            "main_training_function",
            "str",
            "main",
            "Function of the script that TPU processes call.",
            group=g,
            key=("main_training_function",),
        ),
        Option(
            "downcast_bf16",
            "flag",
            False,
            "On TPUs, keep float as bfloat16 and double as float32.",
            group=g,
            env="ACCELERATE_DOWNCAST_BF16",
            key=("downcast_bf16",),
        ),
    ]


# name without prefix, kind, default, help
_DEEPSPEED_ROWS = (
    ("deepspeed_config_file", "str", None, "DeepSpeed's own JSON file.", "CONFIG_FILE"),
    ("zero_stage", "int", None, "ZeRO stage, 0 to 3.", "ZERO_STAGE"),
    ("offload_optimizer_device", "str", None, "none, cpu or nvme (stage 2 and 3).", "OFFLOAD_OPTIMIZER_DEVICE"),
    ("offload_param_device", "str", None, "none, cpu or nvme (stage 3).", "OFFLOAD_PARAM_DEVICE"),
    ("offload_optimizer_nvme_path", "str", None, "Folder for the optimizer state.", "OFFLOAD_OPTIMIZER_NVME_PATH"),
    ("offload_param_nvme_path", "str", None, "Folder for the parameters.", "OFFLOAD_PARAM_NVME_PATH"),
    ("zero3_init_flag", "bool", None, "Build the model sharded (stage 3).", "ZERO3_INIT"),
    ("zero3_save_16bit_model", "bool", None, "Save 16-bit weights (stage 3).", "ZERO3_SAVE_16BIT_MODEL"),
    ("deepspeed_hostfile", "str", None, "DeepSpeed's list of hosts.", None),
    ("deepspeed_exclusion_filter", "str", None, "Hosts and devices to leave out.", None),
    ("deepspeed_inclusion_filter", "str", None, "Hosts and devices to use.", None),
    ("deepspeed_multinode_launcher", "str", None, "pdsh, standard, openmpi, mvapich, mpich, nossh or slurm.", None),
    ("deepspeed_moe_layer_cls_names", "str", None, "Comma list of mixture-of-experts layers.", "MOE_LAYER_CLS_NAMES"),
)


def _deepspeed() -> list[Option]:
    found = [
        Option(
            name,
            kind,
            default,
            text,
            group=DEEPSPEED,
            env=f"ACCELERATE_DEEPSPEED_{env}" if env else None,
            key=("deepspeed_config", name),
            spell="lower" if name.endswith("_device") else "",
        )
        for name, kind, default, text, env in _DEEPSPEED_ROWS
    ]
    clipping = Option(
        "gradient_clipping",
        "float",
        None,
        "Largest gradient norm, clipped by DeepSpeed.",
        group=DEEPSPEED,
        env="ACCELERATE_GRADIENT_CLIPPING",
        key=("deepspeed_config", "gradient_clipping"),
    )
    return [*found, clipping]


_FSDP_ROWS = (
    ("version", "choice", "1", "1 for FullyShardedDataParallel, 2 for fully_shard."),
    ("offload_params", "bool", False, "Keep parameters and gradients on the CPU."),
    ("min_num_params", "int", 100_000_000, "Parameters from which a module is wrapped by SIZE_BASED_WRAP."),
    ("sharding_strategy", "str", "FULL_SHARD", "FSDP1's way of sharding."),
    ("reshard_after_forward", "str", "true", "FSDP2: true or false; FSDP1: a sharding strategy."),
    ("auto_wrap_policy", "str", None, "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP."),
    ("transformer_layer_cls_to_wrap", "str", None, "Comma list of layer classes to wrap."),
    ("backward_prefetch", "str", None, "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH."),
    ("state_dict_type", "str", None, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT."),
    ("forward_prefetch", "bool", False, "Prefetch the next all-gather in the forward pass."),
    ("use_orig_params", "bool", True, "FSDP1: let the optimizer see the original parameters."),
    ("cpu_ram_efficient_loading", "bool", True, "Only the first process reads the weights."),
    ("sync_module_states", "bool", True, "Send the weights of rank 0 to all."),
    ("activation_checkpointing", "bool", False, "Recompute activations in the backward pass."),
    ("activation_checkpointing_offload", "bool", False, "Keep checkpointed activations on the CPU."),
)
_FSDP_ENV = {"transformer_layer_cls_to_wrap": "TRANSFORMER_CLS_TO_WRAP"}


def _fsdp() -> list[Option]:
    found = [
        Option(
            f"fsdp_{name}",
            kind,
            default,
            text,
            group=FSDP,
            choices=("1", "2") if kind == "choice" else (),
            env="FSDP_" + _FSDP_ENV.get(name, name.upper()),
            key=("fsdp_config", f"fsdp_{name}"),
            spell="lower" if name == "reshard_after_forward" else "",
        )
        for name, kind, default, text in _FSDP_ROWS
    ]
    ignored = Option(
        "fsdp_ignored_modules",
        "str",
        None,
        "Pattern of modules that FSDP leaves alone.",
        group=FSDP,
        env="FSDP_IGNORED_MODULES",
        key=("fsdp_config", "fsdp_ignored_modules"),
        flag=None,
    )
    return [*found, ignored]


_MEGATRON_ROWS = (
    ("tp_degree", "int", 1),
    ("use_custom_fsdp", "bool", False),
    ("no_load_optim", "bool", False),
    ("eod_mask_loss", "bool", False),
    ("overlap_cpu_optimizer_d2h_h2d", "bool", False),
    ("no_save_optim", "bool", False),
    ("optimizer_cpu_offload", "bool", False),
    ("use_precision_aware_optimizer", "bool", False),
    ("decoder_last_pipeline_num_layers", "int", None),
    ("pp_degree", "int", 1),
    ("num_micro_batches", "int", None),
    ("sequence_parallelism", "bool", None),
    ("recompute_activations", "bool", None),
    ("use_distributed_optimizer", "bool", None),
    ("gradient_clipping", "float", 1.0),
    ("recompute_granularity", "str", None),
    ("recompute_method", "str", None),
    ("recompute_num_layers", "int", None),
    ("attention_backend", "str", None),
    ("expert_model_parallel_size", "int", None),
    ("context_parallel_size", "int", None),
    ("attention_dropout", "float", None),
    ("hidden_dropout", "float", None),
    ("attention_softmax_in_fp32", "bool", None),
    ("expert_tensor_parallel_size", "int", None),
    ("calculate_per_token_loss", "bool", None),
    ("use_rotary_position_embeddings", "bool", None),
)

_FP8_ROWS = (
    ("backend", "choice", None, "Library that computes in fp8.", ("ao", "te", "msamp"), "backend"),
    ("use_autocast_during_eval", "flag", False, "Use fp8 in evaluation too (te).", (), "use_autocast_during_eval"),
    ("margin", "int", 0, "Margin of the scaling factor (te).", (), "margin"),
    ("interval", "int", 1, "Steps between scaling factors (te).", (), "interval"),
    ("format", "choice", "HYBRID", "fp8 recipe (te).", ("HYBRID", "E4M3", "E5M2"), "fp8_format"),
    ("amax_history_len", "int", 1024, "Length of the history for scaling (te).", (), "amax_history_length"),
    ("amax_compute_algo", "choice", "most_recent", "How the scale is found (te).", ("max", "most_recent"), ""),
    ("opt_level", "choice", "O2", "Optimization level (msamp).", ("O1", "O2"), "optimization_level"),
    ("enable_fsdp_float8_all_gather", "bool", True, "Gather in float8 under FSDP2 (ao).", (), ""),
    ("pad_inner_dim", "bool", True, "Pad inner dimensions to multiples of 16 (ao).", (), "pad_inner_dim"),
)
_FP8_KEYS = {
    "amax_compute_algo": "amax_compute_algorithm",
    "enable_fsdp_float8_all_gather": "enable_fsdp_float8_all_gather",
}


def _megatron() -> list[Option]:
    return [
        Option(
            f"megatron_lm_{name}",
            kind,
            default,
            f"Megatron-LM's {name.replace('_', ' ')}.",
            group=MEGATRON,
            env=f"MEGATRON_LM_{name.upper()}",
            key=("megatron_lm_config", f"megatron_lm_{name}"),
        )
        for name, kind, default in _MEGATRON_ROWS
    ]


def _fp8() -> list[Option]:
    prefix = "ACCELERATE_FP8_"
    found = [
        Option(
            f"fp8_{name}",
            kind,
            default,
            text,
            group=FP8,
            choices=choices,
            env=prefix + name.upper(),
            key=("fp8_config", key or _FP8_KEYS[name]),
            spell="1" if kind == "bool" else "",
        )
        for name, kind, default, text, choices, key in _FP8_ROWS
    ]
    override = Option(
        "fp8_override_linear_precision",
        "bools",
        (False, False, False),
        "Whether fprop, dgrad and wgrad are computed in higher precision (te), as three truth words.",
        group=FP8,
        env=(prefix + "OVERRIDE_FPROP", prefix + "OVERRIDE_DGRAD", prefix + "OVERRIDE_WGRAD"),
        key=("fp8_config", "override_linear_precision"),
    )
    return [*found, override]


_MESH_ROWS = (
    ("dp_replicate_size", "int", 1, "Replicas of the sharded model."),
    ("dp_shard_size", "int", 1, "Processes that share one replica."),
    ("tp_size", "int", 1, "Tensor parallel size."),
    ("cp_size", "int", 1, "Context parallel size."),
    ("cp_backend", "choice", "torch", "Context parallel backend."),
    ("cp_comm_strategy", "str", "allgather", "allgather or alltoall."),
    ("sp_size", "int", 1, "Sequence parallel size."),
    ("sp_backend", "choice", "deepspeed", "Sequence parallel backend."),
    ("sp_seq_length", "str", None, "Length of the sequences."),
    ("sp_seq_length_is_variable", "bool", True, "Sequences differ in length."),
    ("sp_attn_implementation", "str", "sdpa", "Attention used with sequence parallelism."),
)


def _mesh() -> list[Option]:
    return [
        Option(
            f"parallelism_config_{name}",
            kind,
            default,
            text,
            group=MESH,
            choices=(str(default),) if kind == "choice" else (),
            env=f"PARALLELISM_CONFIG_{name.upper()}",
            key=("parallelism_config", f"parallelism_config_{name}"),
        )
        for name, kind, default, text in _MESH_ROWS
    ]


BACKEND_OPTIONS: tuple[Option, ...] = (
    *_tpu(),
    *_deepspeed(),
    *_fsdp(),
    *_megatron(),
    *_fp8(),
    Option("aws_access_key_id", "str", None, "Key of the AWS account (SageMaker).", group=AWS),
    Option("aws_secret_access_key", "str", None, "Secret of the AWS account (SageMaker).", group=AWS),
    Option(
        "mpirun_hostfile",
        "str",
        None,
        "Start the ranks through mpirun with this list of hosts.",
        group=MPI,
        key=("mpirun_config", "mpirun_hostfile"),
    ),
    *_mesh(),
)
