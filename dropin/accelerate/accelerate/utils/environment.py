"""What the environment says, and environments for a while."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drivetrain.config.environ import FALSE_WORDS, TRUE_WORDS, parse_flag, process_env
from drivetrain.core.errors import ConfigError

from accelerate._names import attach


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """1 for y, yes, t, true, on and 1, and 0 for n, no, f, false, off and 0, in any case; as a bool with ``to_bool``.

    Raises:
        ConfigError: any other word.
    """
    word = value.lower()
    if word not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ConfigError(f"invalid truth value {word!r}. Use true or false (also yes/no, on/off, 1/0).")
    return word in TRUE_WORDS if to_bool else int(word in TRUE_WORDS)


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Truth of the variable ``key``; ``default`` where it is not set, or empty.

    Raises:
        ConfigError: it holds no truth value.
    """
    text = os.environ.get(key)
    return parse_flag(text, key) if text else default


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Text of the variable ``key``; ``default`` where it is not set."""
    return os.environ.get(key, str(default))


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """The first number that is not negative among the variables ``env_keys``, else ``default``."""
    for key in env_keys:
        number = int(os.environ.get(key, -1))
        if number >= 0:
            return number
    return default


@dataclass
class CPUInformation:
    """Where this process stands among the others."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Where this process stands, by the variables of torchrun, Open MPI, MVAPICH, Intel MPI or Slurm."""
    env = process_env()
    return CPUInformation(env.rank, env.world_size, env.local_rank, env.local_world_size)


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Those of ``library_names`` that have been imported."""
    return [name for name in library_names if name in sys.modules]


def get_current_device_type() -> tuple[str, str]:
    """Type of the best device that this machine has, and the distributed type of a run on several. Initialises none."""
    from drivetrain.session import choose_platform

    best = choose_platform()
    return best.name, best.distributed_type.value


@contextmanager
def clear_environment() -> Iterator[None]:
    """The environment is empty inside, and restored afterwards, also after an error."""
    before = dict(os.environ)
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """The variables named by ``kwargs`` (in capitals) have these values inside; afterwards they are what they were."""
    values = {name.upper(): str(value) for name, value in kwargs.items()}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def purge_accelerate_environment(func_or_cls: Any) -> Any:
    """Decorator: after each call of a function the variables ``ACCELERATE_*`` are what they were before it.

    Of a class, the methods whose name starts with ``test`` are treated so, those of later subclasses too.
    """
    if not isinstance(func_or_cls, type):
        return _restoring(func_or_cls)
    _restore_tests(func_or_cls)
    inner = func_or_cls.__dict__.get("__init_subclass__")

    def __init_subclass__(cls: type, **kwargs: Any) -> None:
        if inner is not None:
            inner.__func__(cls, **kwargs)
        else:
            super(func_or_cls, cls).__init_subclass__(**kwargs)
        _restore_tests(cls)

    func_or_cls.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]
    return func_or_cls


def _restore_tests(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        if name.startswith("test") and callable(value):
            setattr(cls, name, _restoring(value))


def _restoring(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = _ours()
        try:
            return function(*args, **kwargs)
        finally:
            for name in set(_ours()) - set(before):
                del os.environ[name]
            os.environ.update(before)

    return wrapper


def _ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}


def convert_dict_to_env_variables(current_env: Mapping[str, str]) -> list[str]:
    """``NAME=value`` lines of ``current_env``; those that a shell would read otherwise are left out, with a warning."""
    forbidden = (";", "\n", "<", ">", " ")
    out = []
    for name, value in current_env.items():
        if name and value and not any(sign in name or sign in value for sign in forbidden):
            out.append(f"{name}={value}\n")
        else:
            warnings.warn(f"{name}={value!r} is not passed on: a shell would not read it back.", stacklevel=2)
    return out


# -- NVIDIA -----------------------------------------------------------------------------------------------------------


def get_gpu_info() -> tuple[list[str], int]:
    """Names of the GPUs, and how many there are, as ``nvidia-smi`` says; without touching them."""
    names = [line.strip() for line in _nvidia_smi("name").splitlines() if line.strip()]
    return names, len(names)


def get_driver_version() -> str:
    """Version of the NVIDIA driver, as ``nvidia-smi`` says."""
    return _nvidia_smi("driver_version").splitlines()[0].strip()


def _nvidia_smi(field: str) -> str:
    """
    Raises:
        ConfigError: there is no ``nvidia-smi``, or it fails.
    """
    program = shutil.which("nvidia-smi") if platform.system() != "Windows" else shutil.which("nvidia-smi.exe")
    if program is None:
        raise ConfigError("nvidia-smi is not there, so nothing can be said about NVIDIA GPUs.")
    out = subprocess.run([program, f"--query-gpu={field}", "--format=csv,noheader"], capture_output=True, text=True)
    if out.returncode:
        raise ConfigError(f"nvidia-smi failed: {(out.stderr or out.stdout).strip()}")
    return out.stdout


def check_cuda_p2p_ib_support() -> bool:
    """False where several GPUs of the RTX 40 family meet a driver under 550.40.07, which cannot talk directly."""
    from packaging.version import Version

    try:
        names, count = get_gpu_info()
        if count <= 1 or not any("RTX 40" in name for name in names):
            return True
        return Version(get_driver_version()) >= Version("550.40.07")
    except (ConfigError, ValueError):
        return True


@functools.lru_cache
def check_cuda_fp8_capability() -> bool:
    """Whether the current GPU computes in eight-bit floating point (compute capability 8.9 or later)."""
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


__getattr__, __dir__ = attach(__name__)
