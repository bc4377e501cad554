"""``is_<library>_available``: whether an optional library can be used here. Nothing is imported to find out."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import metadata
from typing import Any

from drivetrain.config.environ import parse_flag
from drivetrain.core.errors import ConfigError, MissingDependency
from drivetrain.core.optional import installed
from packaging.requirements import Requirement
from packaging.version import parse

from accelerate._names import attach


def _is_package_available(pkg_name: str, metadata_name: str | None = None) -> bool:
    """Whether ``pkg_name`` can be imported, and is an installed distribution (``metadata_name``), not just a folder."""
    return _fits(f"{metadata_name or pkg_name}:{pkg_name}")


def _fits(line: str) -> bool:
    text, _, module = line.partition(":")
    wanted = Requirement(text)
    if not installed(module or wanted.name):
        return False
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return False
    return wanted.specifier.contains(version, prereleases=True)


def _needs(*lines: str) -> Callable[[], bool]:
    """A function that tells whether one of ``lines`` is met: a requirement, with the import name after a colon."""

    def is_available() -> bool:
        return any(_fits(line) for line in lines)

    is_available.__doc__ = f"Whether {' or '.join(line.partition(':')[0] for line in lines)} is installed."
    return is_available


is_4bit_bnb_available = _needs("bitsandbytes>=0.39.0")
is_8bit_bnb_available = _needs("bitsandbytes>=0.37.2")
is_aim_available = _needs("aim<4.0.0")
is_amdsmi_available = _needs("amdsmi")
is_boto3_available = _needs("boto3")
is_clearml_available = _needs("clearml")
is_comet_ml_available = _needs("comet_ml")
is_datasets_available = _needs("datasets")
is_deepspeed_available = _needs("deepspeed")
is_dvclive_available = _needs("dvclive")
is_import_timer_available = _needs("import_timer")
is_lomo_available = _needs("lomo_optim")
is_matplotlib_available = _needs("matplotlib")
is_mlflow_available = _needs("mlflow", "mlflow-skinny:mlflow")
is_pandas_available = _needs("pandas")
is_peft_available = _needs("peft")
is_pynvml_available = _needs("nvidia-ml-py:pynvml", "pynvml")
is_pytest_available = _needs("pytest")
is_sagemaker_available = _needs("sagemaker")
is_schedulefree_available = _needs("schedulefree")
is_swanlab_available = _needs("swanlab")
is_tensorboard_available = _needs("tensorboard", "tensorboardX")
is_timm_available = _needs("timm")
is_torchao_available = _needs("torchao>=0.6.1")
is_torchdata_available = _needs("torchdata")
is_torchdata_stateful_dataloader_available = _needs("torchdata>=0.8.0")
is_torchvision_available = _needs("torchvision")
is_tqdm_available = _needs("tqdm")
is_trackio_available = _needs("trackio")
is_transformer_engine_available = _needs("transformer_engine", "intel_transformer_engine", "transformer_engine_torch")
is_transformer_engine_mxfp8_available = _needs("transformer_engine>=2.0.0")
is_transformers_available = _needs("transformers")
is_triton_available = _needs("triton", "pytorch-triton-xpu:triton")
is_wandb_available = _needs("wandb")
is_pippy_available = _needs("torch>=2.4.0")
is_weights_only_available = _needs("torch>=2.4.0")


# -- those with a question of their own -------------------------------------------------------------------------------


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, in at least ``min_version``."""
    return _fits("bitsandbytes" if min_version is None else f"bitsandbytes>={min_version}")


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Whether NumPy is installed, in at least ``min_version``."""
    return _fits(f"numpy>={min_version}")


def is_bitsandbytes_multi_backend_available() -> bool:
    """Whether bitsandbytes says that it works on several kinds of devices."""
    if not is_bnb_available():
        return False
    import bitsandbytes  # pyright: ignore[reportMissingImports]

    return "multi_backend" in getattr(bitsandbytes, "features", set())


def is_rich_available() -> bool:
    """Whether rich is installed and ``ACCELERATE_ENABLE_RICH`` asks for it."""
    text = os.environ.get("ACCELERATE_ENABLE_RICH")
    return bool(text) and parse_flag(text, "ACCELERATE_ENABLE_RICH") and _fits("rich")


def is_megatron_lm_available() -> bool:
    """Whether ``ACCELERATE_USE_MEGATRON_LM`` asks for Megatron-LM and it can be imported."""
    text = os.environ.get("ACCELERATE_USE_MEGATRON_LM")
    return bool(text) and parse_flag(text, "ACCELERATE_USE_MEGATRON_LM") and installed("megatron")


def is_msamp_available() -> bool:
    """Whether MS-AMP is installed."""
    return _fits("ms-amp:msamp")


def is_fp8_available() -> bool:
    """Whether a library for eight-bit floating point is installed: MS-AMP, Transformer Engine or torchao."""
    return is_msamp_available() or _fits("transformer_engine") or _fits("torchao>=0.6.1")


def is_torch_distributed_available() -> bool:
    """Whether this build of torch can run on several processes."""
    import torch

    return hasattr(torch._C, "_c10d_init")


# -- devices ----------------------------------------------------------------------------------------------------------


def _has(platform: str) -> bool:
    from drivetrain.core import registry
    from drivetrain.platforms.base import Platform

    return bool(registry.find("platforms", platform, Platform).is_available())


def is_cuda_available() -> bool:
    """Whether this machine has an NVIDIA or AMD GPU that torch can use. Initialises none."""
    return _has("cuda")


def is_rocm_available() -> bool:
    """Whether the GPU of this machine is an AMD one."""
    import torch

    return is_cuda_available() and torch.version.hip is not None


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether this machine has an Apple GPU, and torch is at least ``min_version``."""
    return _fits(f"torch>={min_version}") and _has("mps")


def is_xpu_available(check_device: bool = False) -> bool:
    """Whether this machine has an Intel GPU (which answers, with ``check_device``)."""
    return _has("xpu") and (not check_device or _answers("xpu"))


def is_npu_available(check_device: bool = False) -> bool:
    """Whether this machine has an Ascend NPU (which answers, with ``check_device``)."""
    return _has("npu") and (not check_device or _answers("npu"))


def is_mlu_available(check_device: bool = False) -> bool:
    """Whether this machine has a Cambricon MLU (which answers, with ``check_device``)."""
    return _has("mlu") and (not check_device or _answers("mlu"))


def is_sdaa_available(check_device: bool = False) -> bool:
    """Whether this machine has a Teco SDAA (which answers, with ``check_device``)."""
    return _has("sdaa") and (not check_device or _answers("sdaa"))


def is_musa_available(check_device: bool = False) -> bool:
    """Whether this machine has a Moore Threads GPU (which answers, with ``check_device``)."""
    return _has("musa") and (not check_device or _answers("musa"))


def is_neuron_available(check_device: bool = False) -> bool:
    """Whether this machine has an AWS Neuron device (which answers, with ``check_device``)."""
    return _has("neuron") and (not check_device or _answers("neuron"))


def is_hpu_available(init_hccl: bool = False) -> bool:
    """Whether this machine has an Intel Gaudi. With ``init_hccl`` its collectives are loaded."""
    if not _has("hpu"):
        return False
    if init_hccl:
        import habana_frameworks.torch.distributed.hccl  # noqa: F401  # pyright: ignore[reportMissingImports]
    return True


def is_habana_gaudi1() -> bool:
    """Whether this machine has an Intel Gaudi of the first generation."""
    if not is_hpu_available():
        return False
    import habana_frameworks.torch.utils.experimental as habana  # pyright: ignore[reportMissingImports]

    return habana._get_device_type() == habana.synDeviceType.synDeviceGaudi


def _answers(platform: str) -> bool:
    import torch

    try:
        torch.empty(1, device=platform)
    except RuntimeError:
        return False
    return True


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether torch_xla is installed (and, if asked, runs on a TPU or GPU). ``USE_TORCH_XLA=0`` says no.

    Raises:
        ConfigError: it is asked for both.
    """
    if check_is_tpu and check_is_gpu:
        raise ConfigError("check_is_tpu and check_is_gpu cannot both be true. Ask for one.")
    text = os.environ.get("USE_TORCH_XLA")
    if (text and not parse_flag(text, "USE_TORCH_XLA")) or not installed("torch_xla"):
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    from drivetrain.core.optional import require

    kind = require("torch_xla", needed_by="this question", module="torch_xla.runtime").device_type()
    return kind == "TPU" if check_is_tpu else kind in ("GPU", "CUDA")


def is_xccl_available() -> bool:
    """Whether torch can run collectives on several Intel GPUs."""
    import torch

    return parse(torch.__version__).release >= (2, 7) and is_xpu_available()


# -- precision --------------------------------------------------------------------------------------------------------


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Whether the device of this process computes in bfloat16.

    Args:
        ignore_tpu: whether the answer on a TPU is no.
    """
    from drivetrain.session import choose_platform

    best = choose_platform()
    if best.name == "xla" and is_torch_xla_available(check_is_tpu=True):
        return not ignore_tpu
    return best.why_not("bf16") is None


def is_fp16_available() -> bool:
    """Whether the device of this process computes in float16: all but the first Gaudi do."""
    return not is_habana_gaudi1()


# -- decorators -------------------------------------------------------------------------------------------------------


def deepspeed_required(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: ``func`` may only be called where the run uses DeepSpeed.

    The function raises:
        ConfigError: there is an Accelerator, and it does not.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from accelerate import state

        if state.is_initialized() and state.AcceleratorState().distributed_type.value != "DEEPSPEED":
            raise ConfigError(f"{func.__name__} needs DeepSpeed, which this run does not use.")
        return func(*args, **kwargs)

    return wrapper


def torchao_required(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: ``func`` may only be called where torchao is installed.

    The function raises:
        MissingDependency: it is not.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _fits("torchao>=0.6.1"):
            raise MissingDependency(f"{func.__name__} needs `torchao>=0.6.1`. Run: pip install 'torchao>=0.6.1'")
        return func(*args, **kwargs)

    return wrapper


__getattr__, __dir__ = attach(__name__)
