"""Collectives and tensor helpers as functions, on one process and on two."""

import pickle
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import pytest
import torch

from accelerate import Accelerator, PartialState
from accelerate.utils import operations
from accelerate.utils.dataclasses import TensorInformation
from drivetrain.core.errors import CollectiveError
from ranks import run_ranks

Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - one of each kind
ENV = {"ACCELERATE_USE_CPU": "true"}

# -- several processes ------------------------------------------------------------------------------------------------


def _collectives():
    rank = PartialState().process_index
    x = torch.tensor([float(rank), 1.0])
    words = [f"from {rank}"]
    return {
        "gather": operations.gather({"x": x})["x"].tolist(),
        "reduce": operations.reduce(x).tolist(),
        "sum": operations.reduce(x, "sum", scale=2.0).tolist(),
        "broadcast": operations.broadcast(x, from_process=1).tolist(),
        "unchanged": x.tolist(),
        "objects": operations.gather_object([rank, "text"]),
        "list": operations.broadcast_object_list(words, from_process=1),
        "same list": words,
        "padded": operations.pad_across_processes(torch.ones(1 + rank), pad_index=7).tolist(),
        "copied": operations.copy_tensor_to_devices(torch.arange(6).reshape(2, 3) if rank == 1 else None).tolist(),
        "shape": [list(operations.gather_tensor_shape(None if rank else torch.ones(2, 1))[0])],
    }


def test_collectives_on_two_processes():
    first, second = run_ranks(_collectives, env=ENV)
    both = {
        "gather": [0.0, 1.0, 1.0, 1.0],
        "reduce": [0.5, 1.0],
        "sum": [2.0, 4.0],
        "broadcast": [1.0, 1.0],
        "objects": [0, "text", 1, "text"],
        "list": ["from 1"],
        "same list": ["from 1"],
        "copied": [[0, 1, 2], [3, 4, 5]],
        "shape": [[2, 1]],
    }
    assert first == {**both, "unchanged": [0.0, 1.0], "padded": [1.0, 7.0]}
    assert second == {**both, "unchanged": [1.0, 1.0], "padded": [1.0, 1.0]}


def _nobody_has_it():
    try:
        operations.copy_tensor_to_devices(None)
    except ValueError as error:
        return str(error)


def test_a_tensor_that_nobody_has_cannot_be_copied():
    for text in run_ranks(_nobody_has_it, env=ENV):
        assert "none of them" in text


def test_collectives_on_one_process():
    x = torch.tensor([1.0, 2.0])
    assert operations.gather(x) is x
    assert operations.gather_object("word") == ["word"]
    assert operations.reduce(x, "sum").tolist() == [1.0, 2.0]
    assert operations.broadcast_object_list([1]) == [1]
    assert operations.copy_tensor_to_devices(x).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="median"):
        operations.reduce(x, "median")


def test_decorators_of_a_debug_mode_leave_functions_alone():
    assert operations.verify_operation(len) is len
    assert operations.chained_operation(len) is len
    assert operations.DistributedOperationException is CollectiveError
    with operations.GatheredParameters([torch.ones(1)], modifier_rank=0):
        pass


# -- nested tensors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda x: [x, 1],
        lambda x: (x, "a"),
        lambda x: Pair(x, None),
        lambda x: {"a": x},
        lambda x: OrderedDict(a=x),
        lambda x: UserDict(a=x),
        lambda x: defaultdict(list, a=x),
    ],
)
def test_recursion_keeps_containers(make):
    data = make(torch.ones(2))
    out = operations.recursively_apply(lambda t, by: t * by, data, 3)
    assert type(out) is type(data)
    values = list(out.values()) if hasattr(out, "values") else list(out)
    assert values[0].tolist() == [3.0, 3.0]
    assert getattr(out, "default_factory", None) is getattr(data, "default_factory", None)


def test_recursion_can_refuse_other_leaves():
    assert operations.recursively_apply(abs, {"a": "text"}) == {"a": "text"}
    with pytest.raises(TypeError, match="^Unsupported types .*str.* passed to `abs`"):
        operations.recursively_apply(abs, [torch.ones(1), "text"], error_on_other_type=True)
    assert operations.recursively_apply(len, ["ab"], test_type=lambda x: isinstance(x, str)) == [2]


def test_structures():
    data = {"a": torch.ones(2, 3), "b": [torch.zeros(1, dtype=torch.int64), "text"]}
    structure = operations.get_data_structure(data)
    assert structure["a"] == TensorInformation(shape=torch.Size([2, 3]), dtype=torch.float32)
    assert operations.is_tensor_information(structure["a"])
    assert operations.get_shape(data) == {"a": [2, 3], "b": [[1], "text"]}
    empty = operations.initialize_tensors(structure)
    assert (empty["a"].shape, empty["b"][0].dtype, empty["b"][1]) == (torch.Size([2, 3]), torch.int64, "text")


def test_batch_size():
    assert operations.find_batch_size({"a": [torch.ones(3, 2)]}) == 3
    for wrong, kind in (([], ValueError), ({}, ValueError), (["text"], TypeError), (1, TypeError)):
        with pytest.raises(kind):
            operations.find_batch_size(wrong)
        assert operations.ignorant_find_batch_size(wrong) is None


def test_small_helpers():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert operations.listify({"a": x, "b": torch.tensor(1, dtype=torch.bfloat16), "c": "text"}) == {
        "a": [[1.0, 2.0], [3.0, 4.0]], "b": 1.0, "c": "text",
    }  # fmt: skip
    assert operations.slice_tensors([x, "text"], slice(0, 1)) == [pytest.approx(x[:1]), "text"]
    assert operations.concatenate([{"a": x}, {"a": x}])["a"].shape == (4, 2)
    assert operations.concatenate([(x,), (x,)], dim=1)[0].shape == (2, 4)
    assert operations.concatenate(["text"]) == "text"
    with pytest.raises(TypeError):
        operations.concatenate(["a", "b"])
    assert operations.find_device([{"a": x}]) == torch.device("cpu")
    assert operations.find_device("text") is None
    assert operations.honor_type(Pair(1, 2), iter([3, 4])) == Pair(3, 4)
    assert operations.is_namedtuple(Pair(1, 2)) and not operations.is_namedtuple((1, 2))
    assert operations.is_torch_tensor(x) and not operations.is_torch_xpu_tensor(x)
    codes = operations.TENSOR_TYPE_TO_INT
    assert [codes[t] for t in (torch.float32, torch.bfloat16, torch.bool)] == [1, 4, 10]
    assert operations.TENSOR_INT_TO_DTYPE[9] is torch.int64


def test_outputs_in_float32():
    def forward(x):
        """Of a model."""
        return {"out": x.bfloat16(), "count": 1}

    wrapped = operations.convert_outputs_to_fp32(forward)
    assert wrapped(torch.ones(1))["out"].dtype == torch.float32
    inner = wrapped.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    assert isinstance(inner, operations.ConvertOutputsToFp32)
    assert inner.__wrapped__ is forward  # pyright: ignore[reportAttributeAccessIssue]
    assert inner.__doc__ == "Of a model."
    with pytest.raises(pickle.PicklingError, match="unwrap_model"):
        pickle.dumps(inner)


def test_the_method_sums_where_the_function_averages():
    accelerator = Accelerator()
    assert accelerator.reduce(torch.tensor([2.0])).tolist() == [2.0]
    assert operations.reduce(torch.tensor([2.0])).tolist() == [2.0]
