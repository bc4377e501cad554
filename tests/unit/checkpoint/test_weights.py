"""Weights on disk: complete or absent, tied tensors once, shards with an index."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from drivetrain.checkpoint.weights import parse_size, save_weights
from drivetrain.core.errors import ConfigError, InputError


@pytest.mark.parametrize(
    "text, size",
    [(7, 7), ("10GB", 10**10), ("1.5 KiB", 1536), ("3mb", 3 * 10**6), ("12", 12), ("2G", None), ("x", None)],
)
def test_sizes(text, size):
    if size is None:
        with pytest.raises(ConfigError, match="not a size"):
            parse_size(text)
    else:
        assert parse_size(text) == size


def test_one_file_with_tied_views_and_scalars(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"w": base, "tied": base, "row": base[1], "t": base.t(), "n": torch.tensor(3), "empty": torch.empty(0)}
    (file,) = save_weights(state, tmp_path)
    loaded = load_file(file)
    assert file.name == "model.safetensors" and "tied" not in loaded
    with safe_open(file, "pt") as f:
        assert f.metadata() == {"format": "pt", "tied": "w"}
    for name, tensor in loaded.items():
        assert torch.equal(tensor, state[name]), name


def test_shards_and_the_way_back_to_one_file(tmp_path):
    state = {f"w{i}": torch.full((250,), float(i)) for i in range(5)}
    files = save_weights(state, tmp_path, max_shard_size="2KB")
    names = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    assert [f.name for f in files] == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5000
    assert index["weight_map"] == {"w0": names[0], "w1": names[0], "w2": names[1], "w3": names[1], "w4": names[2]}
    (tmp_path / "config.json").write_text("{}")
    save_weights(state, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_pickled_format_keeps_all_names(tmp_path):
    w = torch.ones(2)
    (file,) = save_weights({"a": w, "b": w}, tmp_path, safe=False)
    loaded = torch.load(file, weights_only=True)
    assert file.name == "pytorch_model.bin" and set(loaded) == {"a", "b"} and torch.equal(loaded["b"], w)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    save_weights({"w": torch.zeros(2)}, tmp_path)

    def broken(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    with pytest.raises(OSError, match="No space"):
        save_weights({"w": torch.ones(2)}, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_something_else_than_a_tensor_is_named(tmp_path):
    with pytest.raises(InputError, match="'x'.*int"):
        save_weights({"x": 3}, tmp_path)
