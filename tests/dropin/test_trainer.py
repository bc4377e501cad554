"""transformers' `Trainer`, unchanged, on the drop-in: two processes train as one does."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ranks import run_script

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")

SCRIPT = Path(__file__).parent / "trainer_flows.py"
FLOAT32 = 1e-5
BF16 = 2e-2


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    """Results of every flow on one process and on two."""
    folder = tmp_path_factory.mktemp("trainer")
    out = []
    for processes in (1, 2):
        results = folder / f"{processes}.json"
        command = ["accelerate", "launch", "--cpu", "--num_processes", str(processes), SCRIPT, results, folder / "runs"]
        ran = run_script(command, timeout=400)
        assert ran.returncode == 0, ran.output[-6000:]
        assert ran.left_behind == ()
        out.append(json.loads(results.read_text()))
    return out


@pytest.mark.limit(820)
def test_each_flow_runs_on_as_many_processes_as_were_started(flows):
    for processes, results in zip((1, 2), flows, strict=True):
        assert {one["processes"] for one in results.values()} == {processes}


@pytest.mark.parametrize("flow", ["plain", "accumulation", "short_window", "smoothing", "evaluation"])
def test_two_processes_train_like_one(flows, flow):
    one, two = (results[flow] for results in flows)
    assert len(one["losses"]) == len(two["losses"]) >= 6
    assert one["losses"][0] - one["losses"][-1] > 0.1  # it learns, so equal losses mean something
    for name in ("losses", "norms", "eval_loss", "predictions"):
        assert two[name] == pytest.approx(one[name], rel=FLOAT32, abs=FLOAT32), name


def test_two_processes_train_like_one_in_bf16(flows):
    one, two = (results["bf16"] for results in flows)
    assert two["losses"] == pytest.approx(one["losses"], rel=BF16)
    assert two["losses"] != one["losses"] != flows[0]["plain"]["losses"]
    assert one["losses"] == pytest.approx(flows[0]["plain"]["losses"], rel=BF16)


def test_accumulation_takes_the_steps_of_the_whole_batch(flows):
    for results in flows:
        accumulated, plain = results["accumulation"]["losses"], results["plain"]["losses"]
        # The same samples make the first step; the schedules are of different length, so later ones differ.
        assert accumulated[0] == pytest.approx(plain[0], rel=FLOAT32)


def test_each_sample_is_predicted_once(flows):
    for results in flows:
        assert len(results["plain"]["predictions"]) == 13


def test_the_best_checkpoint_is_found_at_the_same_step(flows):
    one, two = (results["evaluation"]["best_step"] for results in flows)
    assert one == two is not None


def test_batch_size_search_ends_where_memory_allows(flows):
    for results in flows:
        searched, direct = results["finds_batch_size"], results["four_rows"]
        assert searched["tried"][:5] == [8, 7, 6, 5, 4]
        assert set(searched["tried"][5:]) == {4}
        assert searched["batch_size"] == 4
        assert searched["losses"] == direct["losses"]
