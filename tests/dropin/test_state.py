"""The shared-state objects: views of the world and of the newest Accelerator, or of the one they are tied to."""

import copy
from datetime import timedelta

import pytest
import torch
from torch.utils.data import DataLoader

from accelerate import Accelerator, PartialState, debug_launcher, notebook_launcher
from accelerate.state import AcceleratorState, GradientState, ThreadLocalSharedDict, do_nothing, is_initialized
from accelerate.utils import DistributedType, GradientAccumulationPlugin, patch_environment
from ranks import run_ranks, run_script

# -- PartialState -----------------------------------------------------------------------------------------------------


def test_there_is_nothing_before_the_first_state():
    assert PartialState._shared_state == {}
    assert {} == AcceleratorState._shared_state
    assert not is_initialized()


def test_a_state_on_one_process():
    state = PartialState(cpu=True)
    assert (state.num_processes, state.process_index, state.local_process_index) == (1, 0, 0)
    assert state.distributed_type is DistributedType.NO
    assert state.device == torch.device("cpu")
    assert state.backend is None
    assert state.debug is False
    assert state.fork_launched is False
    assert not state.use_distributed
    assert state.is_main_process and state.is_local_main_process and state.is_last_process
    assert state.initialized
    assert not is_initialized()  # that asks for an Accelerator


def test_all_states_share_what_one_of_them_is_given():
    PartialState().anything = 3
    assert PartialState().anything == 3
    assert PartialState._shared_state["anything"] == 3
    PartialState().device = torch.device("meta")
    assert PartialState().device == torch.device("meta")
    PartialState._reset_state()
    assert PartialState().device == torch.device("cpu")
    with pytest.raises(AttributeError, match=r"^'PartialState' object has no attribute 'anything'"):
        _ = PartialState().anything


def test_reset_takes_the_attributes_from_states_that_are_still_held():
    state = PartialState()
    PartialState._reset_state()
    assert not state.initialized
    with pytest.raises(AttributeError, match=r"^`PartialState` object has no attribute `device`.*_reset_state\(\)"):
        _ = state.device
    PartialState()
    assert state.device == torch.device("cpu")


def test_the_shared_dictionary_can_be_emptied():
    PartialState()
    assert PartialState._shared_state != {}
    assert PartialState._shared_state["num_processes"] == 1
    PartialState._shared_state.clear()
    assert PartialState._shared_state == {}
    PartialState()
    PartialState._shared_state = {}
    assert len(PartialState._shared_state) == 0


def test_the_text_of_a_state():
    assert repr(PartialState()) == (
        "Distributed environment: DistributedType.NO\nNum processes: 1\nProcess index: 0\nLocal process index: 0\n"
        "Device: cpu\n"
    )
    Accelerator(mixed_precision="bf16")
    assert repr(AcceleratorState()) == f"{PartialState()!r}\nMixed precision type: bf16\n"


def test_wrong_arguments_of_a_state():
    with pytest.raises(ValueError, match="colour"):
        PartialState(colour="red")
    with pytest.raises(NotImplementedError, match="SageMaker"):
        PartialState(_use_sagemaker_dp=True)
    with pytest.raises(ValueError, match="ACCELERATE_USE_CPU.*maybe"), patch_environment(accelerate_use_cpu="maybe"):
        PartialState()


def test_decorators_decide_at_once():
    state = PartialState()

    def function():
        return "ran"

    for decorator in (state.on_main_process, state.on_local_main_process, state.on_last_process):
        assert decorator(function) is function
    assert state.on_process(function, process_index=0) is function
    assert state.on_process(process_index=5)(function) is function  # there is only one process to run on
    assert do_nothing(1, a=2) is None
    PartialState._reset_state()
    with pytest.raises(ValueError, match="on_main_process"):
        state.on_main_process(function)


def test_split_tells_about_strings():
    assert "string" in (PartialState.split_between_processes.__doc__ or "")
    with PartialState().split_between_processes([1, 2]) as part:
        assert part == [1, 2]


def test_a_dictionary_for_each_thread():
    class Holder:
        shared = ThreadLocalSharedDict()

    Holder().shared["a"] = 1
    assert Holder().shared == {"a": 1}
    holder = Holder()
    holder.shared = {"b": 2}
    assert Holder().shared == {"b": 2}


# -- AcceleratorState -------------------------------------------------------------------------------------------------


def test_there_is_no_accelerator_state_without_an_accelerator():
    with pytest.raises(ValueError, match="Accelerator"):
        AcceleratorState()
    assert AcceleratorState(_from_accelerator=True, mixed_precision="bf16").mixed_precision == "bf16"
    assert is_initialized()


def test_the_state_shows_the_newest_accelerator_and_each_accelerator_its_own():
    first = Accelerator(mixed_precision="no", gradient_accumulation_steps=4)
    second = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    assert (first.state.mixed_precision, second.state.mixed_precision) == ("no", "bf16")
    assert (first.gradient_state.num_steps, second.gradient_state.num_steps) == (4, 2)
    assert AcceleratorState().mixed_precision == "bf16"
    assert GradientState().num_steps == 2
    first.gradient_state._set_sync_gradients(False)
    assert (first.sync_gradients, second.sync_gradients) == (False, True)


def test_arguments_must_agree_with_the_accelerator():
    Accelerator(mixed_precision="bf16")
    assert AcceleratorState(mixed_precision="BF16", cpu=True).mixed_precision == "bf16"
    with pytest.raises(ValueError, match=r"mixed_precision='no'.*_reset_state"):
        AcceleratorState(mixed_precision="no")


def test_an_accelerator_outlives_a_reset():
    accelerator = Accelerator()
    AcceleratorState._reset_state(reset_partial_state=True)
    assert not is_initialized()
    assert accelerator.state.device == torch.device("cpu")
    assert accelerator.gather(torch.ones(1)).tolist() == [1.0]
    with pytest.raises(ValueError, match="Accelerator"):
        AcceleratorState()


def test_plugins_of_later_strategies_are_none():
    state = Accelerator().state
    names = ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "parallelism_config")
    assert [getattr(state, name) for name in names] == [None] * 5
    assert state.is_fsdp2 is False
    for call in (lambda: state.get_deepspeed_plugin("a"), lambda: state.select_deepspeed_plugin("a")):
        with pytest.raises(ValueError, match="DeepSpeed"):
            call()
    with pytest.raises(AttributeError, match=r"^'AcceleratorState' object has no attribute 'nothing'"):
        _ = state.nothing


def test_an_accelerator_joins_the_state_that_was_made_before(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    PartialState(cpu=True)
    accelerator = Accelerator()
    assert accelerator.device == torch.device("cpu")
    assert "PartialState" in accelerator.settings.source("cpu")


def test_a_copy_of_an_accelerator_is_the_accelerator():
    accelerator = Accelerator()
    assert copy.deepcopy(accelerator) is accelerator


# -- GradientState ----------------------------------------------------------------------------------------------------


def test_windows_can_be_looked_at_before_there_is_an_accelerator():
    state = GradientState()
    assert (state.sync_gradients, state.num_steps, state.end_of_dataloader, state.remainder) == (True, 1, False, -1)
    assert state.dataloader_references == [None]
    assert state.active_dataloader is None
    assert not state.in_dataloader
    assert state.initialized
    assert not state.adjust_scheduler
    assert not state.is_xla_gradients_synced
    assert "Sync Gradients: True" in repr(state)


def test_options_of_the_windows_can_be_read_and_written():
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3, sync_each_batch=True)
    )
    options = accelerator.gradient_state.plugin_kwargs
    assert dict(options) == {"num_steps": 3, "sync_each_batch": True}
    options["num_steps"] = 5
    options.update(sync_with_dataloader=False)
    assert accelerator.gradient_accumulation_steps == 5
    assert accelerator.gradient_state.sync_with_dataloader is False
    with pytest.raises(ValueError, match="num_steps=0"):
        options["num_steps"] = 0
    del options["sync_each_batch"]
    assert dict(options) == {"num_steps": 5, "sync_with_dataloader": False}
    GradientState(GradientAccumulationPlugin(num_steps=7))
    assert accelerator.gradient_accumulation_steps == 7


def test_the_windows_know_the_loader_that_is_being_read():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    loader = accelerator.prepare(DataLoader(torch.arange(5), batch_size=2))
    state = accelerator.gradient_state
    seen = []
    for _ in loader:
        assert state.active_dataloader is loader
        assert state.dataloader_references == [None, loader]
        assert GradientState().in_dataloader
        with accelerator.accumulate():
            seen.append((state.sync_gradients, state.end_of_dataloader))
    assert seen == [(False, False), (True, False), (True, True)]
    assert state.dataloader_references == [None]


def test_a_loader_of_another_library_can_be_announced():
    loader = Accelerator().prepare(DataLoader(torch.arange(2)))
    state = GradientState()
    state._add_dataloader(loader)
    assert state.active_dataloader is loader
    state._remove_dataloader(loader)
    assert not state.in_dataloader


def test_objects_know_that_they_are_prepared():
    accelerator = Accelerator()
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), DataLoader(torch.arange(2)))
    assert all(item._is_accelerate_prepared for item in prepared)


# -- several processes ------------------------------------------------------------------------------------------------


def _facts():
    state = PartialState(cpu=True, timeout=timedelta(seconds=60))
    before = [state.process_index, state.num_processes, state.distributed_type.value, state.backend]
    ran = [
        state.on_main_process(lambda: "ran")(),
        state.on_last_process(lambda: "ran")(),
        state.on_process(lambda: "ran", process_index=1)(),
    ]
    accelerator = Accelerator()
    with state.split_between_processes(["a", "b", "c"]) as part:
        pass
    AcceleratorState._reset_state(reset_partial_state=True)
    again = PartialState()
    same = torch.distributed.get_world_size()
    return [*before, ran, accelerator.num_processes, part, again.process_index, again.use_distributed, same]


def test_a_state_opens_the_process_group_and_later_ones_join():
    first, second = run_ranks(_facts, env={"ACCELERATE_USE_CPU": "true"})
    assert first == [0, 2, "MULTI_CPU", "gloo", ["ran", None, None], 2, ["a", "b"], 0, True, 2]
    assert second == [1, 2, "MULTI_CPU", "gloo", [None, "ran", "ran"], 2, ["c"], 1, True, 2]


def _destroy():
    state = PartialState()
    opened = torch.distributed.is_initialized()
    state.destroy_process_group()
    return [opened, torch.distributed.is_initialized()]


def test_the_process_group_can_be_ended():
    env = {"ACCELERATE_USE_CPU": "true"}
    assert run_ranks(_destroy, env=env) == [[True, False]] * 2
    assert run_ranks(_destroy, env={**env, "FORK_LAUNCHED": "1"}) == [[True, True]] * 2


LAUNCHERS = """
from accelerate import Accelerator, PartialState, debug_launcher, notebook_launcher
from accelerate.state import AcceleratorState, is_initialized

def look():
    known = is_initialized()
    state = PartialState()
    return [known, state.process_index, state.num_processes, state.distributed_type.value, state.fork_launched]

if __name__ == "__main__":
    Accelerator(mixed_precision="bf16")  # one process: the ranks that are forked from it must not take this for theirs
    print("DEBUG", debug_launcher(look, num_processes=2))
    print("NOTEBOOK", notebook_launcher(look, num_processes=2))
    print("HERE", AcceleratorState().mixed_precision, PartialState().num_processes)
"""


def test_a_bare_state_inside_a_launched_function_is_the_distributed_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LAUNCHERS)
    result = run_script(["python", script], env={"ACCELERATE_USE_CPU": "true"})
    assert result.returncode == 0, result.output
    lines = dict(line.split(" ", 1) for line in result.stdout.splitlines() if line.isascii() and " " in line)
    ranks = "[[False, 0, 2, 'MULTI_CPU', True], [False, 1, 2, 'MULTI_CPU', True]]"
    assert lines["DEBUG"] == lines["NOTEBOOK"] == ranks
    assert lines["HERE"] == "bf16 1"


def test_launchers_are_the_library_s():
    from drivetrain.launch import functions

    assert (debug_launcher, notebook_launcher) == (functions.debug_launcher, functions.notebook_launcher)
