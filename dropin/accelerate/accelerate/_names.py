"""The one table from the names that scripts import to the objects behind them, and what makes a module out of its rows.

A row is ``module: {home: names}``. A home is a module of drivetrain, or one of this package (the module itself, when
it defines the names), or ``LATER + feature`` for names that this version only knows by name. ``name=other`` takes the
object that its home calls ``other``. Everything resolves to the same object wherever it is imported from.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LATER = "later: "
_BIG, _FSDP, _DEEPSPEED, _MEGATRON, _FP8 = (
    LATER + feature
    for feature in (
        "big-model inference",
        "fully sharded data parallel",
        "DeepSpeed",
        "Megatron-LM",
        "eight-bit floating point",
    )
)
_PARALLEL = LATER + "tensor, context and sequence parallelism"
_PIPELINE = LATER + "pipeline-parallel inference"
_QUANTIZED = LATER + "quantised loading"
_CHECKPOINTS = LATER + "checkpoints of the whole training state"
_REGIONAL = LATER + "compilation of repeated blocks"
_CLOUD = LATER + "starting runs on clouds and TPU pods"
_SELF = ""

TABLE: dict[str, dict[str, str]] = {
    "accelerate.accelerator": {_SELF: "Accelerator"},
    "accelerate.big_modeling": {
        _BIG: "attach_layerwise_casting_hooks cpu_offload cpu_offload_with_hook disk_offload dispatch_model "
        "init_empty_weights init_on_device load_checkpoint_and_dispatch",
    },
    "accelerate.checkpointing": {
        _CHECKPOINTS: "load_accelerator_state load_custom_state save_accelerator_state save_custom_state",
    },
    "accelerate.commands.accelerate_cli": {_SELF: "main"},
    "accelerate.commands.config": {_SELF: "main"},
    "accelerate.commands.config.config_args": {
        _SELF: "BaseConfig ClusterConfig SageMakerConfig cache_dir default_config_file default_json_config_file "
        "default_yaml_config_file hf_cache_home load_config_from_file",
    },
    "accelerate.commands.config.default": {_SELF: "write_basic_config"},
    "accelerate.commands.env": {_SELF: "main"},
    "accelerate.commands.launch": {_SELF: "main"},
    "accelerate.commands.test": {_SELF: "main"},
    "accelerate.data_loader": {
        _SELF: "prepare_data_loader",
        "drivetrain.data.dispatch": "DataLoaderDispatcher=DispatchLoader",
        "drivetrain.data.loader": "DataLoaderShard=PreparedLoader",
        "drivetrain.data.samplers": "BatchSamplerShard SeedableRandomSampler SkipBatchSampler get_sampler",
        "drivetrain.data.iterable": "IterableDatasetShard",
        "drivetrain.data.skip": "skip_first_batches",
    },
    "accelerate.hooks": {
        _BIG: "AlignDevicesHook CpuOffload LayerwiseCastingHook ModelHook SequentialHook UserCpuOffloadHook "
        "add_hook_to_module attach_align_device_hook attach_align_device_hook_on_blocks attach_execution_device_hook "
        "remove_hook_from_module remove_hook_from_submodules",
    },
    "accelerate.inference": {
        _PIPELINE: "build_pipeline find_pippy_batch_size generate_device_map pippy_forward prepare_pippy",
    },
    "accelerate.launchers": {"drivetrain.launch.functions": "debug_launcher notebook_launcher"},
    "accelerate.local_sgd": {LATER + "local SGD": "LocalSGD"},
    "accelerate.logging": {_SELF: "get_logger", "drivetrain.runtime.log": "MultiProcessAdapter"},
    "accelerate.memory_utils": {},
    "accelerate.optimizer": {
        "drivetrain.training.optimizer": "AcceleratedOptimizer=PreparedOptimizer move_to_device",
    },
    "accelerate.parallelism_config": {_PARALLEL: "ParallelismConfig"},
    "accelerate.scheduler": {"drivetrain.training.scheduler": "AcceleratedScheduler=PreparedScheduler"},
    "accelerate.state": {
        "accelerate._gradients": "GradientState",
        _SELF: "AcceleratorState PartialState ThreadLocalSharedDict do_nothing is_initialized",
    },
    "accelerate.tracking": {
        _SELF: "LOGGER_TYPE_TO_CLASS filter_trackers register_tracker_class",
        "drivetrain.tracking.base": "GeneralTracker=Tracker get_available_trackers=available_trackers on_main_process",
        "drivetrain.tracking.tensorboard": "TensorBoardTracker",
        LATER + "this tracker": "AimTracker ClearMLTracker CometMLTracker DVCLiveTracker MLflowTracker SwanLabTracker "
        "TrackioTracker WandBTracker",
    },
    "accelerate.utils.ao": {
        _FP8: "convert_model_to_fp8_ao filter_first_and_last_linear_layers filter_linear_layers "
        "find_first_last_linear_layers has_ao_layers",
    },
    "accelerate.utils.bnb": {
        _QUANTIZED: "get_keys_to_not_convert get_parameter_device get_quantized_model_device_map has_4bit_bnb_layers "
        "load_and_quantize_model quantize_and_offload_8bit replace_with_bnb_layers",
    },
    "accelerate.utils.constants": {
        _SELF: "BETA_CP_AVAILABLE_PYTORCH_VERSION BETA_SP_AVAILABLE_DEEPSPEED_VERSION "
        "BETA_TP_AVAILABLE_PYTORCH_VERSION BETA_TP_AVAILABLE_TRANSFORMERS_VERSION CUDA_DISTRIBUTED_TYPES "
        "DEEPSPEED_MULTINODE_LAUNCHERS DTENSOR_PYTORCH_VERSION ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION "
        "FSDP2_PYTORCH_VERSION FSDP2_STATE_DICT_TYPE FSDP_AUTO_WRAP_POLICY FSDP_BACKWARD_PREFETCH FSDP_MODEL_NAME "
        "FSDP_PYTORCH_VERSION FSDP_SHARDING_STRATEGY FSDP_STATE_DICT_TYPE MITA_PROFILING_AVAILABLE_PYTORCH_VERSION "
        "MODEL_NAME OPTIMIZER_NAME PROFILE_PATTERN_NAME RNG_STATE_NAME SAFE_MODEL_NAME SAFE_WEIGHTS_INDEX_NAME "
        "SAFE_WEIGHTS_NAME SAFE_WEIGHTS_PATTERN_NAME SAMPLER_NAME SCALER_NAME SCHEDULER_NAME STR_OPERATION_TO_FUNC "
        "TORCH_DISTRIBUTED_OPERATION_TYPES TORCH_DYNAMO_MODES TORCH_LAUNCH_PARAMS WEIGHTS_INDEX_NAME WEIGHTS_NAME "
        "WEIGHTS_PATTERN_NAME XPU_PROFILING_AVAILABLE_PYTORCH_VERSION",
    },
    "accelerate.utils.dataclasses": {
        _SELF: "get_module_class_from_name",
        "drivetrain.config.enums": "BaseEnum ComputeEnvironment CustomDtype DDPCommunicationHookType DistributedType "
        "DynamoBackend FP8BackendType LoggerType PrecisionType RNGType SageMakerDistributedType",
        "drivetrain.config.handlers": "AutocastKwargs DataLoaderConfiguration DistributedDataParallelKwargs "
        "GradScalerKwargs GradientAccumulationPlugin InitProcessGroupKwargs KwargsHandler ProfileKwargs "
        "ProjectConfiguration TensorInformation TorchDynamoPlugin",
        _FSDP: "FullyShardedDataParallelPlugin",
        _DEEPSPEED: "DeepSpeedPlugin DeepSpeedSequenceParallelConfig",
        _MEGATRON: "MegatronLMPlugin add_model_config_to_megatron_parser",
        _FP8: "AORecipeKwargs FP8RecipeKwargs MSAMPRecipeKwargs TERecipeKwargs",
        _PARALLEL: "TorchContextParallelConfig TorchTensorParallelConfig TorchTensorParallelPlugin",
        _QUANTIZED: "BnbQuantizationConfig",
    },
    "accelerate.utils.deepspeed": {
        _DEEPSPEED: "DeepSpeedEngineWrapper DeepSpeedOptimizerWrapper DeepSpeedSchedulerWrapper DummyOptim "
        "DummyScheduler HfDeepSpeedConfig get_active_deepspeed_plugin map_pytorch_optim_to_deepspeed",
    },
    "accelerate.utils.environment": {
        _SELF: "CPUInformation are_libraries_initialized check_cuda_fp8_capability check_cuda_p2p_ib_support "
        "clear_environment convert_dict_to_env_variables get_cpu_distributed_information get_current_device_type "
        "get_driver_version get_gpu_info get_int_from_env parse_choice_from_env parse_flag_from_env patch_environment "
        "purge_accelerate_environment str_to_bool",
        LATER + "binding processes to the cores next to their device": "override_numa_affinity set_numa_affinity",
    },
    "accelerate.utils.fsdp_utils": {
        _FSDP: "disable_fsdp_ram_efficient_loading enable_fsdp_ram_efficient_loading ensure_weights_retied "
        "fsdp2_apply_ac fsdp2_canonicalize_names fsdp2_load_full_state_dict fsdp2_prepare_auto_wrap_policy "
        "fsdp2_prepare_model fsdp2_switch_optimizer_parameters get_fsdp2_grad_scaler get_parameters_from_modules "
        "load_fsdp_model load_fsdp_optimizer merge_fsdp_weights save_fsdp_model save_fsdp_optimizer",
    },
    "accelerate.utils.imports": {
        _SELF: "deepspeed_required is_4bit_bnb_available is_8bit_bnb_available is_aim_available is_amdsmi_available "
        "is_bf16_available is_bitsandbytes_multi_backend_available is_bnb_available is_boto3_available "
        "is_clearml_available is_comet_ml_available is_cuda_available is_datasets_available is_deepspeed_available "
        "is_dvclive_available is_fp16_available is_fp8_available is_habana_gaudi1 is_hpu_available "
        "is_import_timer_available is_lomo_available is_matplotlib_available is_megatron_lm_available "
        "is_mlflow_available is_mlu_available is_mps_available is_msamp_available is_musa_available "
        "is_neuron_available is_npu_available is_numpy_available is_pandas_available is_peft_available "
        "is_pippy_available is_pynvml_available is_pytest_available is_rich_available is_rocm_available "
        "is_sagemaker_available is_schedulefree_available is_sdaa_available is_swanlab_available "
        "is_tensorboard_available is_timm_available is_torch_distributed_available is_torch_xla_available "
        "is_torchao_available is_torchdata_available is_torchdata_stateful_dataloader_available "
        "is_torchvision_available is_tqdm_available is_trackio_available is_transformer_engine_available "
        "is_transformer_engine_mxfp8_available is_transformers_available is_triton_available is_wandb_available "
        "is_weights_only_available is_xccl_available is_xpu_available torchao_required",
    },
    "accelerate.utils.launch": {
        _CLOUD: "prepare_sagemager_args_inputs prepare_tpu",
        LATER + "the parts that a launcher is made of": "PrepareForLaunch prepare_deepspeed_cmd_env "
        "prepare_multi_gpu_env prepare_simple_launcher_cmd_env",
    },
    "accelerate.utils.megatron_lm": {
        _MEGATRON: "AbstractTrainStep BertTrainStep GPTTrainStep MegatronEngine MegatronLMDummyDataLoader "
        "MegatronLMDummyScheduler MegatronLMOptimizerWrapper MegatronLMSchedulerWrapper T5TrainStep "
        "avg_losses_across_data_parallel_group gather_across_data_parallel_groups",
    },
    "accelerate.utils.memory": {
        "drivetrain.training.oom": "clear_device_cache find_executable_batch_size release_memory "
        "should_reduce_batch_size",
    },
    "accelerate.utils.modeling": {
        _BIG: "align_module_device calculate_maximum_sizes check_device_map check_device_same "
        "check_tied_parameters_in_config check_tied_parameters_on_same_device clean_device_map compute_module_sizes "
        "compute_module_total_buffer_size convert_file_size_to_int dtype_byte_size fallback_allocate "
        "find_tied_parameters get_balanced_memory get_max_layer_size get_max_memory get_module_leaves "
        "get_module_size_with_ties get_non_persistent_buffers get_state_dict_from_offload "
        "get_state_dict_offloaded_model has_offloaded_params id_tensor_storage infer_auto_device_map is_peft_model "
        "load_checkpoint_in_model load_offloaded_weights load_state_dict named_module_tensors retie_parameters "
        "set_module_tensor_to_device get_grad_scaler get_mixed_precision_context_manager",
    },
    "accelerate.utils.offload": {
        _BIG: "OffloadedWeightsLoader PrefixedDataset extract_submodules_state_dict load_offloaded_weight "
        "offload_state_dict offload_weight save_offload_index",
    },
    "accelerate.utils.operations": {
        _SELF: "CannotPadNestedTensorWarning ConvertOutputsToFp32 DistributedOperationException GatheredParameters "
        "TENSOR_INT_TO_DTYPE TENSOR_TYPE_TO_INT broadcast broadcast_object_list chained_operation concatenate "
        "convert_outputs_to_fp32 copy_tensor_to_devices find_batch_size find_device gather gather_object "
        "gather_tensor_shape get_data_structure get_shape honor_type ignorant_find_batch_size initialize_tensors "
        "is_tensor_information is_torch_tensor is_torch_xpu_tensor listify pad_across_processes recursively_apply "
        "reduce slice_tensors verify_operation",
        "drivetrain.core.tree": "is_namedtuple",
        "drivetrain.data.placement": "send_to_device",
        "drivetrain.precision.autocast": "convert_to_fp32",
        _PIPELINE: "pad_input_tensors",
    },
    "accelerate.utils.other": {
        _SELF: "check_os_kernel clean_state_dict_for_safetensors convert_bytes extract_model_from_parallel "
        "get_free_port get_model_tp_size get_module_children_bottom_up get_pretty_name is_port_in_use load merge_dicts "
        "model_has_dtensor recursive_getattr save wait_for_everyone",
        "drivetrain.transforms.compile": "is_compiled_module=is_compiled",
        _REGIONAL: "compile_regions compile_regions_deepspeed compile_regions_fsdp2 has_compiled_regions "
        "has_repeated_blocks is_repeated_blocks",
    },
    "accelerate.utils.random": {_SELF: "set_seed synchronize_rng_state synchronize_rng_states"},
    "accelerate.utils.torch_xla": {_CLOUD: "install_xla"},
    "accelerate.utils.tqdm": {"drivetrain.runtime.progress": "tqdm"},
    "accelerate.utils.transformer_engine": {
        _FP8: "apply_fp8_autowrap contextual_fp8_autocast convert_model has_transformer_engine_layers",
    },
    "accelerate.utils.versions": {_SELF: "compare_versions is_torch_version torch_version"},
}
"""Where each public name is at home."""

_TOP = (
    "Accelerator AutocastKwargs DDPCommunicationHookType DataLoaderConfiguration DeepSpeedPlugin "
    "DistributedDataParallelKwargs DistributedType FullyShardedDataParallelPlugin GradScalerKwargs "
    "InitProcessGroupKwargs ParallelismConfig PartialState ProfileKwargs cpu_offload cpu_offload_with_hook "
    "debug_launcher disk_offload dispatch_model find_executable_batch_size infer_auto_device_map init_empty_weights "
    "init_on_device is_rich_available load_checkpoint_and_dispatch load_checkpoint_in_model notebook_launcher "
    "prepare_pippy skip_first_batches synchronize_rng_states"
)
_UTILS = (
    "ao bnb constants dataclasses deepspeed environment fsdp_utils imports launch megatron_lm memory modeling offload "
    "operations other random torch_xla tqdm transformer_engine versions"
)

AGAIN: dict[str, tuple[str, ...]] = {
    # module: what else can be imported from it; a module's name stands for all that is at home there.
    "accelerate": tuple(_TOP.split()),
    "accelerate.utils": (
        *(f"accelerate.utils.{name}" for name in _UTILS.split()),
        "accelerate.parallelism_config",
        "accelerate.commands.config.default",
    ),
    "accelerate.accelerator": ("accelerate.utils", "accelerate.state", "accelerate.optimizer", "accelerate.scheduler",
        "accelerate.tracking", "accelerate.data_loader", "accelerate.checkpointing", "accelerate.logging"),
    "accelerate.big_modeling": ("accelerate.hooks", "accelerate.utils"),
    "accelerate.checkpointing": ("accelerate.utils",),
    "accelerate.commands.config": ("accelerate.commands.config.config_args", "accelerate.commands.config.default"),
    "accelerate.commands.launch": ("accelerate.commands.config.config_args",),
    "accelerate.data_loader": ("accelerate.state", "accelerate.utils", "accelerate.logging"),
    "accelerate.launchers": ("accelerate.state", "accelerate.utils"),
    "accelerate.logging": ("accelerate.state",),
    "accelerate.memory_utils": ("accelerate.utils.memory",),
    "accelerate.optimizer": ("accelerate.state", "accelerate.utils"),
    "accelerate.scheduler": ("accelerate.state",),
    "accelerate.state": ("accelerate.utils",),
    "accelerate.tracking": ("accelerate.logging", "accelerate.utils", "accelerate.state"),
    "accelerate.utils.dataclasses": ("accelerate.utils.constants",),
    "accelerate.utils.fsdp_utils": ("accelerate.utils.constants",),
    "accelerate.utils.modeling": ("accelerate.utils.constants",),
    "accelerate.utils.imports": ("accelerate.utils",),
    "accelerate.utils.memory": ("accelerate.utils.imports",),
    "accelerate.utils.operations": ("accelerate.utils", "accelerate.state"),
    "accelerate.utils.other": ("accelerate.utils", "accelerate.state"),
    "accelerate.utils.random": ("accelerate.utils", "accelerate.state"),
}  # fmt: skip
"""Modules that show what is at home elsewhere."""

PACKAGES = ("accelerate", "accelerate.commands", "accelerate.commands.config", "accelerate.utils")


def attach(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for ``module``, which import what its rows name when it is first asked for."""
    rows = _Rows(module)

    def __getattr__(name: str) -> Any:
        value = rows.find(name)
        vars(sys.modules[module])[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[module]), *public_names(module)})

    return __getattr__, __dir__


def public_names(module: str) -> list[str]:
    """The names that the table gives to ``module``, its submodules included, sorted."""
    return sorted(_homes_of(module))


class _Rows:
    """What the table says of one module; read when it is first needed, which may be never."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._homes: dict[str, tuple[str, str]] | None = None

    def find(self, name: str) -> Any:
        """The object called ``name``.

        Raises:
            AttributeError: the table does not name it for this module, or the module that should define it does not.
        """
        if self._homes is None:
            self._homes = _homes_of(self.module)
        found = self._homes.get(name)
        if found is None or found == (self.module, name):
            raise AttributeError(f"module {self.module!r} has no attribute {name!r}")
        home, other = found
        if home.startswith(LATER):
            from accelerate._later import placeholder

            return placeholder(self.module, name, home.removeprefix(LATER))
        owner = import_module(home)
        return getattr(owner, other) if other else owner


def _homes_of(module: str) -> dict[str, tuple[str, str]]:
    """Name to (module, name there). A submodule is (its own name, "")."""
    homes: dict[str, tuple[str, str]] = {}
    for source in AGAIN.get(module, ()):
        if "." in source:
            homes |= {name: (source, name) for name in _own(source) | _shown(source)}
        else:
            homes[source] = _HOME_OF_TOP[source]
    if module in PACKAGES:
        inside = [*TABLE, *PACKAGES]
        homes |= {
            other.removeprefix(f"{module}."): (other, "")
            for other in inside
            if other.startswith(f"{module}.")
            and "." not in other[len(module) + 1 :]
            # A function of the same name stands before its module, as in `from accelerate.utils import tqdm`.
            and other.removeprefix(f"{module}.") not in homes
        }
    return homes | _own_homes(module)


def _own(module: str) -> set[str]:
    return set(_own_homes(module))


def _shown(module: str) -> set[str]:
    """Names that a module which collects others (`accelerate.utils`) shows."""
    if module != "accelerate.utils":
        return set()
    return {name for source in AGAIN[module] for name in _own(source)}


def _own_homes(module: str) -> dict[str, tuple[str, str]]:
    out = {}
    for home, names in TABLE.get(module, {}).items():
        for word in names.split():
            name, _, other = word.partition("=")
            out[name] = (home or module, other or name)
    return out


_HOME_OF_TOP: dict[str, tuple[str, str]] = {
    name: (module, name)
    for module, rows in TABLE.items()
    for names in rows.values()
    for name in (word.partition("=")[0] for word in names.split())
    if name in AGAIN["accelerate"]
}
