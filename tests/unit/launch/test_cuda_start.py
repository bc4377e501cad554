"""The call that initialised CUDA is remembered and named."""

import sys
import types

from drivetrain.launch.cuda_start import FirstCall, names_on_device
from ranks import run_script


def test_the_stack_of_the_first_call_is_kept():
    one = FirstCall()

    def touches_the_device():
        one.remember()

    touches_the_device()
    assert "test_cuda_start.py" in one.told() and "one.remember()" in one.told()


def test_torch_calls_it_when_cuda_is_initialised():
    import torch

    one = FirstCall()
    one.watch()
    one.watch()  # once is enough
    queued = [call for call, _ in torch.cuda._queued_calls if call == one.remember]
    torch.cuda._queued_calls[:] = [entry for entry in torch.cuda._queued_calls if entry[0] != one.remember]
    assert len(queued) == 1
    queued[0]()  # as torch does at that moment
    assert "test_cuda_start.py" in one.told()


def test_without_a_stack_it_says_so():
    assert "cannot be named" in FirstCall().told()


def test_variables_on_a_device_are_named(monkeypatch):
    import torch

    class Elsewhere(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda:0")

    main = types.ModuleType("__main__")
    main.__dict__.update(weights=torch.ones(1).as_subclass(Elsewhere), here=torch.ones(1), text="x")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert names_on_device() == ["weights"]
    assert "These variables live on the device: weights." in FirstCall().told()


def test_an_import_of_the_accelerator_is_enough_to_have_the_call_named():
    """Also where notebook_launcher was imported first, before torch."""
    code = (
        "from drivetrain import notebook_launcher; from drivetrain import Accelerator; import torch; "
        "from drivetrain.launch.cuda_start import FIRST_CALL; "
        "print([call for call, _ in torch.cuda._queued_calls].count(FIRST_CALL.remember))"
    )
    assert run_script(["python", "-c", code], timeout=60).stdout == "1\n"
