"""Accelerators are counted by files, less what the vendor's variable hides."""

import pytest

from drivetrain.launch import devices


@pytest.fixture
def machine(monkeypatch):
    """A machine whose folders hold what the test says, and nothing else."""

    def made(folders, texts=None):
        monkeypatch.setattr(devices, "_listed", lambda folder: folders.get(folder, []))
        monkeypatch.setattr(devices, "_text", lambda path: (texts or {}).get(path, ""))

    return made


@pytest.mark.parametrize(
    ("folders", "kind", "count"),
    [
        ({}, "", 0),
        ({"/proc/driver/nvidia/gpus": ["0000:01:00.0", "0000:02:00.0"]}, "cuda", 2),
        ({"/dev": ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]}, "cuda", 2),
        ({"/dev": ["davinci0", "davinci_manager"]}, "npu", 1),
        ({"/dev": ["null", "neuron0", "neuron1"]}, "neuron", 2),
        ({"/dev/accel": ["accel0", "accel_controlD0"]}, "hpu", 1),
    ],
)
def test_counted_by_files(machine, folders, kind, count):
    machine(folders)
    found = devices.visible({"PATH": ""})
    assert (found.kind, found.count) == (kind, count)


def test_amd_counts_nodes_with_compute_units(machine):
    root = "/sys/class/kfd/kfd/topology/nodes"
    machine(
        {root: ["0", "1"]}, {f"{root}/0/properties": "simd_count 0\n", f"{root}/1/properties": "x 1\nsimd_count 304\n"}
    )
    assert repr(devices.visible({"PATH": ""})) == "Devices('rocm', 1)"


@pytest.mark.parametrize(("mask", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,1", 2), ("0,1,2,3", 2), ("0,-1,1", 1)])
def test_hidden_devices_do_not_count(machine, mask, count):
    machine({"/dev": ["nvidia0", "nvidia1"]})
    assert devices.visible({"PATH": "", "CUDA_VISIBLE_DEVICES": mask}).count == count


@pytest.mark.parametrize(
    ("answer", "count"), [("echo 'GPU 0: X'; echo 'GPU 1: X'", 2), ("exit 9", 0), ("echo none", 0)]
)
def test_the_vendors_tool_is_asked_last(machine, tmp_path, answer, count):
    machine({})
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    assert devices.visible({"PATH": str(tmp_path)}).count == count
