"""What accelerators this machine shows, asked of files and of the vendor's tool, so that torch need not be imported."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBILITY = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "mlu": "MLU_VISIBLE_DEVICES",
    "sdaa": "SDAA_VISIBLE_DEVICES",
    "musa": "MUSA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES",
    "neuron": "NEURON_RT_VISIBLE_CORES",
}
"""Variable that limits what a process sees of each kind of device; ``--gpu_ids`` is handed on through it."""

# Kind of device, folder, and how the names in it that are one device each begin (a number follows, or anything if "").
_FILES = (
    ("cuda", "/proc/driver/nvidia/gpus", ""),
    ("cuda", "/dev", "nvidia"),
    ("npu", "/dev", "davinci"),
    ("mlu", "/dev", "cambricon_dev"),
    ("musa", "/dev", "mtgpu."),
    ("sdaa", "/dev", "tcaicard"),
    ("neuron", "/dev", "neuron"),
    ("hpu", "/dev/accel", "accel"),
)
_AMD_NODES = "/sys/class/kfd/kfd/topology/nodes"
_CARDS = "/sys/class/drm"
_LEVEL_ZERO = ("/usr/lib/x86_64-linux-gnu/libze_loader.so.1", "/usr/lib64/libze_loader.so.1")


class Devices:
    """The accelerators that a process started here would see: their kind ("" for none) and how many."""

    __slots__ = ("kind", "count")

    def __init__(self, kind: str = "", count: int = 0) -> None:
        self.kind = kind
        self.count = count

    def __repr__(self) -> str:
        return f"Devices({self.kind!r}, {self.count})"


def visible(environ: Mapping[str, str]) -> Devices:
    """Count the accelerators of the first vendor that has any, less what the vendor's variable in ``environ`` hides."""
    kind, number = _installed(environ)
    return Devices(kind, _limited(number, environ.get(VISIBILITY.get(kind, "")))) if number else Devices()


def _installed(environ: Mapping[str, str]) -> tuple[str, int]:
    for kind, folder, prefix in _FILES:
        number = sum(
            not prefix or name.startswith(prefix) and name[len(prefix) :].isdigit() for name in _listed(folder)
        )
        if number:
            return kind, number
    for kind, number in (("rocm", _amd()), ("xpu", _intel()), ("cuda", _nvidia_smi(environ))):
        if number:
            return kind, number
    return "", 0


def _limited(number: int, mask: str | None) -> int:
    """How many of ``number`` devices a mask such as "0,2" leaves; an unset mask leaves all, "" and "-1" none."""
    if mask is None:
        return number
    names = [name.strip() for name in mask.split(",") if name.strip()]
    if "-1" in names:  # the vendors ignore what stands behind the first device that does not exist
        names = names[: names.index("-1")]
    return min(number, len(names)) if number else 0


def _amd() -> int:
    """GPU nodes of the AMD driver; its CPU nodes have no compute units."""
    lines = (line for node in _listed(_AMD_NODES) for line in _text(f"{_AMD_NODES}/{node}/properties").splitlines())
    return sum(line.startswith("simd_count ") and not line.endswith(" 0") for line in lines)


def _intel() -> int:
    """Intel devices, where the Level Zero loader is there as well: without it they are for display only."""
    if not any(os.path.exists(path) for path in _LEVEL_ZERO):
        return 0
    cards = [name for name in _listed(_CARDS) if name.startswith("renderD")]
    return sum(_text(f"{_CARDS}/{card}/device/vendor").strip() == "0x8086" for card in cards)


def _nvidia_smi(environ: Mapping[str, str]) -> int:
    """Ask the vendor's tool, for systems without the driver's files (WSL)."""
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return 0
    try:
        found = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0  # a driver that cannot be asked has no device to offer
    return sum(line.startswith("GPU ") for line in found.stdout.splitlines()) if found.returncode == 0 else 0


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
