"""The names that scripts import: all there, the same object everywhere, with the parameters that scripts pass."""

import inspect
from importlib import import_module
from unittest import mock

import pytest

import drivetrain
from accelerate import _names
from accelerate._later import NotAvailable, Placeholder
from accelerate._names import AGAIN, LATER, PACKAGES, TABLE, public_names

# Parameters after `self`, and defaults, as scripts use them. "..." stands for a default that is compared nowhere.
SIGNATURES = {
    "accelerate.Accelerator": {
        "device_placement": True, "split_batches": ..., "mixed_precision": None, "gradient_accumulation_steps": 1,
        "cpu": False, "dataloader_config": None, "deepspeed_plugin": None, "fsdp_plugin": None,
        "torch_tp_plugin": None, "megatron_lm_plugin": None, "rng_types": None, "log_with": None, "project_dir": None,
        "project_config": None, "gradient_accumulation_plugin": None, "step_scheduler_with_optimizer": True,
        "kwargs_handlers": None, "dynamo_backend": None, "dynamo_plugin": None, "deepspeed_plugins": None,
        "parallelism_config": None,
    },
    "accelerate.PartialState": {"cpu": False},
    "accelerate.state.AcceleratorState": {
        "mixed_precision": None, "cpu": False, "dynamo_plugin": None, "deepspeed_plugin": None, "fsdp_plugin": None,
        "torch_tp_plugin": None, "megatron_lm_plugin": None, "parallelism_config": None, "_from_accelerator": False,
    },
    "accelerate.state.GradientState": {"gradient_accumulation_plugin": None},
    "accelerate.optimizer.AcceleratedOptimizer": {"optimizer": ..., "device_placement": True, "scaler": None},
    "accelerate.scheduler.AcceleratedScheduler": {
        "scheduler": ..., "optimizers": ..., "step_with_optimizer": True, "split_batches": False,
    },
    "accelerate.logging.get_logger": {"name": ..., "log_level": None},
    "accelerate.tracking.filter_trackers": {"log_with": ..., "logging_dir": None},
    "accelerate.tracking.register_tracker_class": {"tracker_class": ...},
    "accelerate.tracking.GeneralTracker": {"_blank": False},
    "accelerate.tracking.TensorBoardTracker": {"run_name": ..., "logging_dir": ...},
    "accelerate.notebook_launcher": {
        "function": ..., "args": (), "num_processes": None, "mixed_precision": "no", "use_port": "29500",
        "master_addr": "127.0.0.1", "node_rank": 0, "num_nodes": 1, "rdzv_backend": "static", "rdzv_endpoint": "",
        "rdzv_conf": None, "rdzv_id": "none", "max_restarts": 0, "monitor_interval": 0.1,
        "log_line_prefix_template": None,
    },
    "accelerate.debug_launcher": {"function": ..., "args": (), "num_processes": 2},
    "accelerate.skip_first_batches": {"dataloader": ..., "num_batches": 0},
    "accelerate.data_loader.prepare_data_loader": {
        "dataloader": ..., "device": None, "num_processes": None, "process_index": None, "split_batches": False,
        "put_on_device": False, "rng_types": None, "dispatch_batches": None, "even_batches": True,
        "slice_fn_for_dispatch": None, "use_seedable_sampler": False, "data_seed": None, "non_blocking": False,
        "use_stateful_dataloader": False, "torch_device_mesh": None,
    },
    "accelerate.data_loader.BatchSamplerShard": {
        "batch_sampler": ..., "num_processes": 1, "process_index": 0, "split_batches": False, "even_batches": True,
    },
    "accelerate.data_loader.IterableDatasetShard": {
        "dataset": ..., "batch_size": 1, "drop_last": False, "num_processes": 1, "process_index": 0,
        "split_batches": False,
    },
    "accelerate.data_loader.SkipBatchSampler": {"batch_sampler": ..., "skip_batches": 0},
    "accelerate.utils.DataLoaderConfiguration": {
        "split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": False,
        "data_seed": None, "non_blocking": False, "use_stateful_dataloader": False,
    },
    "accelerate.utils.ProjectConfiguration": {
        "project_dir": None, "logging_dir": None, "automatic_checkpoint_naming": False, "total_limit": None,
        "iteration": 0, "save_on_each_node": False,
    },
    "accelerate.utils.GradientAccumulationPlugin": {
        "num_steps": None, "adjust_scheduler": True, "sync_with_dataloader": True, "sync_each_batch": False,
    },
    "accelerate.utils.TorchDynamoPlugin": {
        "backend": None, "mode": None, "fullgraph": None, "dynamic": None, "options": None, "disable": False,
        "use_regional_compilation": None,
    },
    "accelerate.utils.gather": {"tensor": ...},
    "accelerate.utils.gather_object": {"object": ...},
    "accelerate.utils.broadcast": {"tensor": ..., "from_process": 0},
    "accelerate.utils.broadcast_object_list": {"object_list": ..., "from_process": 0},
    "accelerate.utils.reduce": {"tensor": ..., "reduction": "mean", "scale": 1.0},
    "accelerate.utils.pad_across_processes": {"tensor": ..., "dim": 0, "pad_index": 0, "pad_first": False},
    "accelerate.utils.send_to_device": {"tensor": ..., "device": ..., "non_blocking": False, "skip_keys": None},
    "accelerate.utils.slice_tensors": {
        "data": ..., "tensor_slice": ..., "process_index": None, "num_processes": None,
    },
    "accelerate.utils.concatenate": {"data": ..., "dim": 0},
    "accelerate.utils.find_executable_batch_size": {
        "function": None, "starting_batch_size": 128, "reduce_batch_size_fn": None,
    },
    "accelerate.utils.extract_model_from_parallel": {
        "model": ..., "keep_fp32_wrapper": True, "keep_torch_compile": True, "recursive": False,
    },
    "accelerate.utils.save": {"obj": ..., "f": ..., "save_on_each_node": False, "safe_serialization": False},
    "accelerate.utils.load": {"f": ..., "map_location": None},
    "accelerate.utils.set_seed": {"seed": ..., "device_specific": False, "deterministic": False},
    "accelerate.utils.synchronize_rng_state": {"rng_type": None, "generator": None},
    "accelerate.utils.synchronize_rng_states": {"rng_types": ..., "generator": None},
    "accelerate.utils.compare_versions": {"library_or_version": ..., "operation": ..., "requirement_version": ...},
    "accelerate.utils.is_torch_version": {"operation": ..., "version": ...},
    "accelerate.utils.is_bf16_available": {"ignore_tpu": False},
    "accelerate.utils.is_xpu_available": {"check_device": False},
    "accelerate.utils.is_torch_xla_available": {"check_is_tpu": False, "check_is_gpu": False},
    "accelerate.utils.str_to_bool": {"value": ..., "to_bool": False},
    "accelerate.utils.parse_flag_from_env": {"key": ..., "default": False},
    "accelerate.utils.parse_choice_from_env": {"key": ..., "default": "no"},
    "accelerate.utils.write_basic_config": {"mixed_precision": "no", "save_location": ...},
    "accelerate.utils.tqdm": {"main_process_only": True},
}  # fmt: skip

METHODS = {
    "accumulate": {}, "autocast": {"autocast_handler": None}, "backward": {"loss": ...}, "check_trigger": {},
    "clear": {}, "clip_grad_norm_": {"parameters": ..., "max_norm": ..., "norm_type": 2},
    "clip_grad_value_": {"parameters": ..., "clip_value": ...}, "end_training": {}, "free_memory": {},
    "gather": {"tensor": ...}, "gather_for_metrics": {"input_data": ..., "use_gather_object": False},
    "get_state_dict": {"model": ..., "unwrap": True}, "get_tracker": {"name": ..., "unwrap": False},
    "join_uneven_inputs": {"joinables": ..., "even_batches": None},
    "lomo_backward": {"loss": ..., "learning_rate": ...},
    "maybe_context_parallel": {"buffers": None, "buffer_seq_dims": None, "no_restore_buffers": None},
    "no_sync": {"model": ...}, "on_process": {"function": None, "process_index": None},
    "pad_across_processes": {"tensor": ..., "dim": 0, "pad_index": 0, "pad_first": False},
    "prepare": {"device_placement": None},
    "prepare_data_loader": {"data_loader": ..., "device_placement": None, "slice_fn_for_dispatch": None},
    "prepare_model": {"model": ..., "device_placement": None, "evaluation_mode": False},
    "prepare_optimizer": {"optimizer": ..., "device_placement": None}, "prepare_scheduler": {"scheduler": ...},
    "profile": {"profile_handler": None}, "reduce": {"tensor": ..., "reduction": "sum", "scale": 1.0},
    "save": {"obj": ..., "f": ..., "safe_serialization": False},
    "save_model": {"model": ..., "save_directory": ..., "max_shard_size": "10GB", "safe_serialization": True},
    "skip_first_batches": {"dataloader": ..., "num_batches": 0},
    "split_between_processes": {"inputs": ..., "apply_padding": False}, "trigger_sync_in_backward": {"model": ...},
    "unscale_gradients": {"optimizer": None},
    "unwrap_model": {"model": ..., "keep_fp32_wrapper": True, "keep_torch_compile": True},
    "verify_device_map": {"model": ...}, "wait_for_everyone": {},
}  # fmt: skip

PROPERTIES = (
    "deepspeed_plugin device dispatch_batches distributed_type even_batches fp8_backend gradient_accumulation_steps "
    "is_composable_parallelism_enabled is_fsdp2 is_last_process is_local_main_process is_main_process "
    "local_process_index logging_dir mixed_precision multi_device non_blocking num_processes "
    "optimizer_step_was_skipped parallelism_config process_index project_dir save_iteration should_save_model "
    "split_batches sync_gradients torch_device_mesh use_distributed use_seedable_sampler use_stateful_dataloader "
    "state gradient_state scaler native_amp log_with trackers step rng_types device_placement project_configuration "
    "step_scheduler_with_optimizer ddp_handler scaler_handler init_handler autocast_handler profile_handler "
    "fp8_recipe_handler has_fp8_handler flag_tensor has_lomo_optimizer delayed_fp8_autocast"
).split()

# What transformers and PEFT import from us at the top of their modules.
CLIENTS = {
    "accelerate": "Accelerator PartialState ParallelismConfig cpu_offload_with_hook dispatch_model "
    "infer_auto_device_map init_empty_weights load_checkpoint_and_dispatch skip_first_batches",
    "accelerate.commands.config": "default_config_file load_config_from_file",
    "accelerate.hooks": "AlignDevicesHook add_hook_to_module remove_hook_from_module remove_hook_from_submodules",
    "accelerate.optimizer": "AcceleratedOptimizer",
    "accelerate.scheduler": "AcceleratedScheduler",
    "accelerate.parallelism_config": "ParallelismConfig",
    "accelerate.state": "AcceleratorState PartialState ThreadLocalSharedDict",
    "accelerate.utils": "AutocastKwargs DataLoaderConfiguration DeepSpeedPlugin DeepSpeedSchedulerWrapper "
    "DistributedDataParallelKwargs DistributedType DummyOptim DummyScheduler FullyShardedDataParallelPlugin "
    "GradientAccumulationPlugin TorchDynamoPlugin extract_model_from_parallel find_executable_batch_size "
    "find_tied_parameters get_balanced_memory get_max_memory infer_auto_device_map is_mlu_available is_npu_available "
    "is_xpu_available load_fsdp_model load_fsdp_optimizer named_module_tensors offload_state_dict "
    "parse_choice_from_env parse_flag_from_env reduce release_memory save_fsdp_model save_fsdp_optimizer",
    "accelerate.utils.constants": "FSDP_AUTO_WRAP_POLICY FSDP_SHARDING_STRATEGY",
    "accelerate.utils.dataclasses": "SageMakerDistributedType get_module_class_from_name",
    "accelerate.utils.deepspeed": "HfDeepSpeedConfig",
    "accelerate.utils.imports": "is_bf16_available is_fp8_available is_xpu_available",
    "accelerate.utils.memory": "clear_device_cache release_memory should_reduce_batch_size",
    "accelerate.utils.modeling": "clean_device_map get_max_layer_size",
    "accelerate.utils.operations": "recursively_apply",
}


def _find(path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _check_signature(function, expected):
    found = inspect.signature(function).parameters
    for name, default in expected.items():
        assert name in found, f"no parameter {name}"
        if default is not ...:
            assert found[name].default == default, name
    listed = [name for name in found if name in expected]
    assert listed == list(expected)  # scripts pass some of them by position


@pytest.mark.parametrize("path", SIGNATURES)
def test_parameters_and_defaults(path):
    _check_signature(_find(path), SIGNATURES[path])


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_accelerator(name):
    _check_signature(getattr(_find("accelerate.Accelerator"), name), METHODS[name])


def test_attributes_of_the_accelerator():
    accelerator = _find("accelerate.Accelerator")()
    assert [name for name in PROPERTIES if not hasattr(accelerator, name)] == []


@pytest.mark.parametrize("module", CLIENTS)
def test_what_clients_import_is_there(module):
    assert [name for name in CLIENTS[module].split() if not hasattr(import_module(module), name)] == []


@pytest.mark.filterwarnings("ignore:accelerate.memory_utils:FutureWarning")
@pytest.mark.parametrize("module", [*TABLE, *PACKAGES])
def test_every_name_of_the_table_resolves(module):
    found = {name: getattr(import_module(module), name) for name in public_names(module)}
    assert None not in found.values()
    assert set(found) <= set(dir(import_module(module)))


@pytest.mark.parametrize("module", [m for m in AGAIN if m != "accelerate.memory_utils"])
def test_a_name_is_the_same_object_wherever_it_is_imported_from(module):
    for name, (home, other) in _names._homes_of(module).items():
        if other and not home.startswith(LATER):
            assert getattr(import_module(module), name) is getattr(import_module(home), other), name


def test_ours_are_the_library_s_own_objects():
    import accelerate
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from drivetrain.training.optimizer import PreparedOptimizer
    from drivetrain.training.scheduler import PreparedScheduler

    assert AcceleratedOptimizer is PreparedOptimizer
    assert AcceleratedScheduler is PreparedScheduler
    assert accelerate.DistributedType is drivetrain.DistributedType
    assert accelerate.utils.send_to_device is drivetrain.send_to_device
    assert issubclass(accelerate.Accelerator, drivetrain.Accelerator)


def test_an_unknown_name_is_an_attribute_error():
    import accelerate

    with pytest.raises(AttributeError, match=r"module 'accelerate' has no attribute 'nothing'"):
        _ = accelerate.nothing
    with pytest.raises(ImportError):
        from accelerate.utils import nothing  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    import accelerate.utils.tqdm
    from accelerate.utils import tqdm

    assert callable(tqdm)
    assert accelerate.utils.tqdm is tqdm


def test_names_can_be_patched_in_place():
    from accelerate import big_modeling
    from accelerate.utils import operations

    before = operations.gather, big_modeling.check_device_map
    with mock.patch("accelerate.utils.operations.gather", return_value="patched"):
        assert operations.gather(None) == "patched"
    big_modeling.check_device_map = len
    assert big_modeling.check_device_map is len
    big_modeling.check_device_map = before[1]
    assert (operations.gather, big_modeling.check_device_map) == before


LATER_NAMES = [
    (module, word)
    for module, rows in TABLE.items()
    for home, names in rows.items()
    if home.startswith(LATER)
    for word in names.split()
]


@pytest.mark.parametrize(("module", "name"), LATER_NAMES, ids=[f"{m}.{n}" for m, n in LATER_NAMES])
def test_a_later_name_says_so_when_it_is_used(module, name):
    later = getattr(import_module(module), name)
    with pytest.raises(NotAvailable, match=rf"{name} is not available in this version of drivetrain"):
        later("anything", option=1)


def test_a_later_class_can_be_subclassed_and_asked_about():
    from accelerate.utils import FullyShardedDataParallelPlugin

    class Own(FullyShardedDataParallelPlugin):
        pass

    assert not isinstance(object(), Own)
    assert issubclass(Own, Placeholder)
    with pytest.raises(NotAvailable, match="fully sharded data parallel"):
        Own()


@pytest.mark.parametrize("name", ["save_state", "load_state"])
def test_later_methods_of_the_accelerator_say_so(name):
    accelerator = _find("accelerate.Accelerator")()
    with pytest.raises(NotAvailable, match=name):
        getattr(accelerator, name)("folder")


def test_later_ranks_of_the_accelerator_say_so():
    accelerator = _find("accelerate.Accelerator")()
    for name in ("pipeline_parallel_rank", "context_parallel_rank"):
        with pytest.raises(NotImplementedError):
            getattr(accelerator, name)
    for name in ("tensor_parallel_rank", "data_parallel_rank", "data_parallel_shard_rank"):
        with pytest.raises(RuntimeError, match="process_index"):
            getattr(accelerator, name)
