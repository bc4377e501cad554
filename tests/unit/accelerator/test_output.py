"""Models leave the Accelerator whole, under their own names."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from drivetrain import Accelerator, InputError


def test_unwrap_takes_mixed_precision_away_when_asked():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = nn.Linear(2, 2)
    prepared = accelerator.prepare(model)
    assert accelerator.unwrap_model(prepared) is model and "_original_forward" in model.__dict__
    assert accelerator.unwrap_model(prepared, keep_fp32_wrapper=False) is model
    assert "_original_forward" not in model.__dict__ and "forward" not in model.__dict__


def test_a_partly_compiled_model_is_unwrapped():
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0] = torch.compile(model[0], backend="eager")
    assert accelerator.unwrap_model(accelerator.prepare(model)) is model


def test_save_model_in_one_file_or_several(tmp_path):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    accelerator.save_model(model, tmp_path / "one")
    loaded = load_file(tmp_path / "one" / "model.safetensors")
    assert set(loaded) == set(model.state_dict()) and torch.equal(loaded["1.weight"], model[1].weight)
    accelerator.save_model(model, tmp_path / "many", max_shard_size=300)
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) == 2
    accelerator.save_model(model, tmp_path / "bin", safe_serialization=False)
    assert torch.load(tmp_path / "bin" / "pytorch_model.bin", weights_only=True).keys() == loaded.keys()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        accelerator.save_model(model, tmp_path / "file")


def test_save_writes_objects_and_tensors(tmp_path):
    accelerator = Accelerator(cpu=True)
    accelerator.save({"x": torch.ones(2), "n": 3}, tmp_path / "any.pt")
    assert torch.load(tmp_path / "any.pt", weights_only=True)["n"] == 3
    accelerator.save({"x": torch.ones(2)}, tmp_path / "safe.safetensors", safe_serialization=True)
    assert load_file(tmp_path / "safe.safetensors")["x"].tolist() == [1, 1]
    with pytest.raises(InputError, match="list"):
        accelerator.save([1], tmp_path / "x", safe_serialization=True)
    with pytest.raises(InputError, match="'n'"):
        accelerator.save({"n": 3}, tmp_path / "x", safe_serialization=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["any.pt", "safe.safetensors"]
