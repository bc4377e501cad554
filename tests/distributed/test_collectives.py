"""Collectives between two ranks: right values, or one error on every rank that says who does what."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from ranks import rank_outcomes, run_ranks, run_script


def _accelerator(**kwargs):
    from drivetrain import Accelerator

    return Accelerator(cpu=True, **kwargs)


def _values():
    accelerator = _accelerator()
    r = accelerator.process_index
    nested = {"x": torch.tensor([r, r + 10]), "y": (torch.tensor(float(r)), [torch.ones(1, 2) * r])}
    given = torch.tensor([1 + r])
    padded = accelerator.pad_across_processes(torch.ones(2 + r, dtype=torch.bool))
    front = accelerator.pad_across_processes(torch.ones(1, 2 + r), dim=-1, pad_index=7, pad_first=True)
    gathered = accelerator.gather(nested)
    return {
        "gather": [gathered["x"].tolist(), gathered["y"][0].tolist(), gathered["y"][1][0].tolist()],
        "sum": accelerator.reduce(given).tolist(),
        "mean of integers": accelerator.reduce(given, reduction="mean").tolist(),
        "max": accelerator.reduce(given, reduction="max").tolist(),
        "scaled": accelerator.reduce(given.float(), scale=0.5).tolist(),
        "none": accelerator.reduce(given.float(), reduction="none", scale=2.0).tolist(),
        "flags": accelerator.reduce(torch.tensor([True, bool(r)])).tolist(),
        "given": given.tolist(),
        "padded": [str(padded.dtype), padded.tolist(), front.tolist()],
    }


def test_values_of_two_ranks():
    first, second = run_ranks(_values)
    assert first["gather"] == [[0, 10, 1, 11], [0.0, 1.0], [[0.0, 0.0], [1.0, 1.0]]]
    assert first["sum"] == [3] and first["mean of integers"] == [1.5] and first["max"] == [2]
    assert first["scaled"] == [1.5] and first["flags"] == [2, 1]
    assert first["none"] == [2.0] and second["none"] == [4.0]
    assert [first["given"], second["given"]] == [[1], [2]]
    assert first["padded"] == ["torch.bool", [True, True, False], [[7.0, 1.0, 1.0]]]
    assert second["padded"] == ["torch.bool", [True, True, True], [[1.0, 1.0, 1.0]]]
    differing = {key for key in first if first[key] != second[key]}
    assert differing == {"none", "given", "padded"}


def _objects():
    accelerator = _accelerator()
    r = accelerator.process_index
    box = [f"from {r}", {r}]
    return [
        *(accelerator.gather_object(value) for value in ({f"k{r}": 1}, 3 + r, "ab", [r, r])),
        accelerator.broadcast_object_list(box, from_process=1),
        accelerator.broadcast({"x": torch.tensor([r])}, from_process=1)["x"].tolist(),
    ]


def test_objects_stay_whole():
    for got in run_ranks(_objects):
        assert got == [[{"k0": 1}, {"k1": 1}], [3, 4], ["ab", "ab"], [0, 0, 1, 1], ["from 1", {1}], [1]]


def _disagree(how):
    accelerator = _accelerator()
    r = accelerator.process_index
    if how == "shape":
        accelerator.gather(torch.ones(5 + r))
    elif how == "dtype":
        accelerator.reduce(torch.ones(2, dtype=(torch.float32, torch.int32)[r]))
    elif how == "structure":
        accelerator.gather({"a": torch.ones(1)} if r else [torch.ones(1)])
    elif r:
        accelerator.wait_for_everyone()
    else:
        accelerator.gather(torch.ones(5))


@pytest.mark.parametrize(
    "how, words",
    [
        ("shape", ["shape [5]", "shape [6]"]),
        ("dtype", ["float32", "int32"]),
        ("structure", ["dict", "list"]),
        ("call", ["gather", "wait_for_everyone"]),
    ],
)
def test_ranks_that_disagree_all_say_so(how, words):
    for outcome in rank_outcomes(_disagree, args=(how,)):
        assert outcome.error == "CollectiveError"
        for word in (*words, "rank 0", "rank 1", "test_collectives.py"):
            assert word in outcome.text


@dataclass
class Record:
    rows: torch.Tensor


def _disagreeing_records():
    accelerator = _accelerator()
    accelerator.gather(Record(torch.ones(2 + accelerator.process_index)))


def test_records_are_described_with_what_is_in_them():
    for outcome in rank_outcomes(_disagreeing_records):
        assert outcome.error == "CollectiveError" and "Record(rows: float32 of shape [3])" in outcome.text


def _one_object_a_batch():
    from torch.utils.data import DataLoader

    accelerator = _accelerator(collective_timeout=20)
    start = time.monotonic()
    for _ in accelerator.prepare(DataLoader(torch.arange(7), batch_size=2)):
        try:
            accelerator.gather_for_metrics(["one", "two", "three"])
        except RuntimeError as error:
            return [type(error).__name__, str(error), time.monotonic() - start]


def test_a_rank_that_cannot_tell_its_padding_takes_the_others_along():
    (name, text, seconds), (other_name, other_text, _) = run_ranks(_one_object_a_batch)
    assert name == other_name == "UsageError" and seconds < 10
    assert "rank 1" in text and "padding cannot be told" in other_text


def _timeout_of_a_later_one():
    _accelerator()
    accelerator = _accelerator(collective_timeout=1)
    start = time.monotonic()
    if accelerator.process_index == 0:
        with pytest.raises(RuntimeError, match="waited 1 s"):
            accelerator.wait_for_everyone()
    return time.monotonic() - start


def test_the_timeout_of_a_later_accelerator_counts():
    assert run_ranks(_timeout_of_a_later_one)[0] < 20


def _not_a_tensor():
    _accelerator().gather({"x": torch.ones(1), "name": "a"})


def test_a_leaf_that_is_no_tensor_is_named_on_every_rank():
    for outcome in rank_outcomes(_not_a_tensor):
        assert outcome.error == "InputError" and "str" in outcome.text and "gather_object" in outcome.text


MISSING = """
import time
import torch
from drivetrain import Accelerator
accelerator = Accelerator(cpu=True, collective_timeout=3)
if accelerator.process_index == 0:
    accelerator.gather(torch.ones(1))
def busy():
    while True:
        time.sleep(0.1)  # the line it is at
busy()
"""

IN_BACKWARD = """
import time
import torch
from drivetrain import Accelerator
accelerator = Accelerator(cpu=True, collective_timeout=4)
model = accelerator.prepare(torch.nn.Linear(2, 2))
loss = model(torch.ones(1, 2)).sum()
if accelerator.process_index == 1:
    time.sleep(600)  # the line it is at
accelerator.backward(loss)
"""


@pytest.mark.parametrize("text", [MISSING, IN_BACKWARD], ids=["collective", "gradients"])
def test_a_rank_that_stays_away_is_named_with_its_line_and_all_end(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    line = next(i for i, words in enumerate(text.splitlines(), 1) if "the line it is at" in words)
    start = time.monotonic()
    out = run_script(["drivetrain", "launch", "--cpu", "--num_processes", "2", script], timeout=90)
    assert out.returncode not in (0, None)
    said = out.stderr
    assert (
        "rank 1" in said
        and f'script.py", line {line}' in said
        and "did not join" in said
        and "collective_timeout" in said
    )
    assert time.monotonic() - start < 60
    assert not out.left_behind


def _triggers():
    accelerator = _accelerator()
    seen = [accelerator.check_trigger()]
    if accelerator.process_index == 1:
        accelerator.set_trigger()
    return [*seen, accelerator.check_trigger(), accelerator.check_trigger()]


def test_a_trigger_on_one_rank_is_seen_by_all_once():
    assert run_ranks(_triggers) == [[False, True, False]] * 2


def _main_first(fails):
    accelerator = _accelerator()
    order = []
    try:
        with accelerator.main_process_first():
            order.append(accelerator.process_index)
            if fails and accelerator.is_main_process:
                raise ValueError("main failed")
    except (ValueError, RuntimeError) as error:
        order.append(f"{type(error).__name__}: {error}")
    accelerator.wait_for_everyone()
    return order


def test_main_process_first_goes_first():
    assert run_ranks(_main_first, args=(False,)) == [[0], [1]]


def test_an_error_of_the_main_process_reaches_those_that_wait():
    main, other = run_ranks(_main_first, args=(True,))
    assert main == [0, "ValueError: main failed"]
    assert len(other) == 1 and other[0].startswith("CollectiveError: rank 0") and "ValueError: main failed" in other[0]


def _only_some():
    accelerator = _accelerator()

    @accelerator.on_last_process
    def last(x):
        return x + 1

    @accelerator.on_process(process_index=0)
    def zero():
        return "zero"

    with accelerator.split_between_processes({"a": [1, 2, 3]}, apply_padding=True) as part:
        return [last(1), zero(), accelerator.on_main_process(lambda: "main")(), part]


def test_functions_run_where_they_should():
    assert run_ranks(_only_some) == [[None, "zero", "main", {"a": [1, 2]}], [2, None, None, {"a": [3, 3]}]]


def _after_the_end():
    accelerator = _accelerator()
    accelerator.end_training()
    return accelerator.gather(torch.tensor([accelerator.process_index])).tolist()


def test_collectives_after_end_training():
    assert run_ranks(_after_the_end) == [[0, 1]] * 2


def _gathered_metrics(rows_per_sample, as_objects):
    from torch.utils.data import DataLoader

    accelerator = _accelerator()
    out = []
    for batch in accelerator.prepare(DataLoader(torch.arange(9), batch_size=2)):
        if as_objects:
            names = batch.tolist()
            out.append(accelerator.gather_for_metrics(([f"p{i}" for i in names], {"r": names})))
        else:
            out += accelerator.gather_for_metrics(batch.repeat_interleave(rows_per_sample)).tolist()
    return out


@pytest.mark.parametrize("rows", [1, 3])
def test_metrics_have_each_sample_once(rows):
    expected = [i for i in range(9) for _ in range(rows)]
    assert run_ranks(_gathered_metrics, args=(rows, False)) == [expected] * 2


def test_objects_for_metrics_keep_their_form():
    last = run_ranks(_gathered_metrics, args=(1, True))[0][-1]
    assert last == (["p8"], {"r": [8]})


def _one_row_a_batch():
    import logging

    from torch.utils.data import DataLoader

    accelerator = _accelerator()
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("drivetrain").addHandler(handler)
    loader = accelerator.prepare(DataLoader(torch.arange(9.0), batch_size=2))
    rows = [accelerator.gather_for_metrics(batch.mean().reshape(1)).tolist() for batch in loader]
    return rows, said


def test_one_row_for_a_batch_is_kept_and_warned_about():
    (rows, said), (other, _) = run_ranks(_one_row_a_batch)
    assert rows == other and [len(one) for one in rows] == [2, 2, 2]
    assert len(said) == 1 and "mean over one rank's batch" in said[0]
