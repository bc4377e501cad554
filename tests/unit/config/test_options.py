"""The option table covers the contract, each entry is consistent, and values are read strictly."""

import re

import pytest

from drivetrain.config.option import KINDS
from drivetrain.config.options import BY_NAME, FILE_ONLY, OPTIONS, SAGEMAKER, SHOWN_WITH, option
from drivetrain.core.errors import ConfigError

# Flags of the established launch command (positional arguments aside), and the type words of its documentation.
CONTRACT_FLAGS = """
config_file quiet module no_python debug cpu multi_gpu tpu mixed_precision num_processes num_machines
num_cpu_threads_per_process enable_cpu_affinity dynamo_backend dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic
dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm gpu_ids same_network
machine_rank main_process_ip main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts monitor_interval
tpu_cluster tpu_use_sudo vm env main_training_function downcast_bf16 deepspeed_config_file zero_stage
offload_optimizer_device offload_param_device offload_optimizer_nvme_path offload_param_nvme_path
gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_hostfile
deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher deepspeed_moe_layer_cls_names
fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy fsdp_reshard_after_forward
fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type
fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states
fsdp_activation_checkpointing fsdp_activation_checkpointing_offload megatron_lm_tp_degree megatron_lm_use_custom_fsdp
megatron_lm_no_load_optim megatron_lm_eod_mask_loss megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim
megatron_lm_optimizer_cpu_offload megatron_lm_use_precision_aware_optimizer
megatron_lm_decoder_last_pipeline_num_layers megatron_lm_pp_degree megatron_lm_num_micro_batches
megatron_lm_sequence_parallelism megatron_lm_recompute_activations megatron_lm_use_distributed_optimizer
megatron_lm_gradient_clipping megatron_lm_recompute_granularity megatron_lm_recompute_method
megatron_lm_recompute_num_layers megatron_lm_attention_backend megatron_lm_expert_model_parallel_size
megatron_lm_context_parallel_size megatron_lm_attention_dropout megatron_lm_hidden_dropout
megatron_lm_attention_softmax_in_fp32 megatron_lm_expert_tensor_parallel_size megatron_lm_calculate_per_token_loss
megatron_lm_use_rotary_position_embeddings fp8_backend fp8_use_autocast_during_eval fp8_margin fp8_interval fp8_format
fp8_amax_history_len fp8_amax_compute_algo fp8_override_linear_precision fp8_opt_level
fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim aws_access_key_id aws_secret_access_key mpirun_hostfile
parallelism_config_dp_replicate_size parallelism_config_dp_shard_size parallelism_config_tp_size
parallelism_config_cp_size parallelism_config_cp_backend parallelism_config_cp_comm_strategy parallelism_config_sp_size
parallelism_config_sp_backend parallelism_config_sp_seq_length parallelism_config_sp_seq_length_is_variable
parallelism_config_sp_attn_implementation
""".split()


def test_every_contract_flag_is_there():
    flags = {one.flag for one in OPTIONS}
    assert [name for name in CONTRACT_FLAGS if f"--{name}" not in flags] == []


def test_names_flags_keys_and_variables_are_unique():
    for read in (
        lambda one: [one.name],
        lambda one: [one.flag] if one.flag else [],
        lambda one: [one.short] if one.short else [],
        lambda one: [one.key] if one.key else [],
        lambda one: [one.env] if isinstance(one.env, str) else list(one.env or ()),
    ):
        every = [item for one in OPTIONS for item in read(one)]
        assert len(every) == len(set(every))


@pytest.mark.parametrize("one", OPTIONS, ids=lambda one: one.name)
def test_each_entry_is_consistent(one):
    assert one.kind in KINDS
    assert one.help.endswith(".")
    assert bool(one.choices) == (one.kind == "choice")
    if one.default is not None:
        assert one.from_value(one.default, "x") == one.default
        assert type(one.from_value(one.default, "x")) is type(one.default)
        if one.kind != "list":
            assert one.from_text(one.to_text(one.default), "x") == one.default
    assert (one.flag is None) == (one.group in (FILE_ONLY, SAGEMAKER) or one.name == "fsdp_ignored_modules")
    assert one.flag is None or re.fullmatch(r"--[a-z0-9_]+", one.flag)


def test_hidden_groups_name_real_options():
    assert set(SHOWN_WITH.values()) <= set(BY_NAME)
    assert set(SHOWN_WITH) <= {one.group for one in OPTIONS}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("megatron_lm_no_load_optim", "False", False),  # any text counted as true here once
        ("parallelism_config_sp_seq_length_is_variable", "no", False),
        ("fsdp_offload_params", "TRUE", True),
        ("cpu", "0", False),
        ("num_processes", "4", 4),
        ("monitor_interval", "0.5", 0.5),
        ("mixed_precision", "BF16", "bf16"),
        ("dynamo_backend", "INDUCTOR", "inductor"),
        ("fp8_format", "hybrid", "HYBRID"),
        ("fp8_override_linear_precision", "true,false,1", (True, False, True)),
        ("fsdp_reshard_after_forward", "FULL_SHARD", "FULL_SHARD"),
        ("vm", "a,b", ["a", "b"]),
    ],
)
def test_text_becomes_a_value(name, text, value):
    assert option(name).from_text(text, "x") == value


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("num_processes", 2.0, 2),
        ("num_processes", "2", 2),
        ("main_process_port", "29500", 29500),
        ("fsdp_reshard_after_forward", True, "true"),
        ("downcast_bf16", "no", False),
        ("gpu_ids", 0, "0"),
        ("gpu_ids", [0, 1], "0,1"),
        ("gradient_clipping", 1, 1.0),
        ("fsdp_version", 2, "2"),
        ("commands", ["a"], ["a"]),
        ("fp8_override_linear_precision", [True, "no", False], (True, False, False)),
        ("mixed_precision", None, None),
    ],
)
def test_native_values_are_read(name, value, read):
    assert option(name).from_value(value, "x") == read


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mixed_precision", "bf17", "choose one of no, fp16, bf16, fp8"),
        ("num_processes", "two", "no whole number"),
        ("num_processes", 2.5, "no whole number"),
        ("num_processes", [1], "a whole number is expected"),
        ("use_fsdp", "maybe", "no truth value"),
        ("num_processes", {"a": 1}, "a whole number is expected"),
        ("num_processes", True, "no whole number"),
    ],
)
def test_wrong_values_name_source_value_and_what_is_right(name, value, said):
    with pytest.raises(ConfigError, match=said) as caught:
        option(name).from_value(value, "THE_SOURCE")
    assert "THE_SOURCE" in str(caught.value)


def test_how_values_are_exported():
    assert option("cpu").to_text(True) == "True"
    assert option("enable_cpu_affinity").to_text(True) == "1"
    assert option("fsdp_offload_params").to_text(False) == "false"
    assert option("dynamo_backend").to_text("inductor") == "INDUCTOR"
    assert option("offload_param_device").to_text("CPU") == "cpu"
    assert option("vm").to_text(["a", "b"]) == "a,b"


def test_unknown_option_gives_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'mixed_precision'"):
        option("mixed_precison")
