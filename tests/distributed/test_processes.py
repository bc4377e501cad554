"""Who does what on two ranks: decorators, turns, shares, and what is printed once."""

from __future__ import annotations

import contextlib
import io

from ranks import run_ranks


def _accelerator():
    from drivetrain import Accelerator

    return Accelerator(cpu=True)


def _said(name, **where):
    """What the decorator called `name` lets this rank return: with a function, and as a factory."""
    accelerator = _accelerator()
    decorator = getattr(accelerator, name)

    def function(x, *, y):
        """Adds."""
        return x + y

    direct, made = decorator(function, **where), decorator(**where)(function)
    return [direct(1, y=2), made(1, y=2), direct.__name__, direct.__doc__]


def _decorated():
    return {
        name: _said(name, **where)
        for name, where in (
            ("on_main_process", {}),
            ("on_local_main_process", {}),
            ("on_last_process", {}),
            ("on_process", {"process_index": 1}),
            ("on_local_process", {"local_process_index": 1}),
        )
    }


def test_each_decorator_runs_its_function_on_its_rank():
    first, second = run_ranks(_decorated)
    ran, not_ran = [3, 3, "function", "Adds."], [None, None, "function", "Adds."]
    main = {"on_main_process": ran, "on_local_main_process": ran}
    last = {"on_last_process": ran, "on_process": ran, "on_local_process": ran}
    assert first == main | dict.fromkeys(last, not_ran)
    assert second == dict.fromkeys(main, not_ran) | last


def _one_index_too_many():
    try:
        _accelerator().on_process(print, process_index=2)
    except ValueError as error:
        return str(error)


def test_a_rank_that_does_not_exist_is_named():
    assert (
        run_ranks(_one_index_too_many)
        == ["process_index=2, but the processes are numbered 0 to 1. Give one of those."] * 2
    )


def _turns(path):
    accelerator = _accelerator()
    for number in range(3):
        with accelerator.local_main_process_first():
            with open(path, "a") as file:
                file.write(f"{number}{accelerator.process_index} ")
        accelerator.wait_for_everyone()
    with open(path) as file:
        return file.read().split()


def test_the_first_of_a_machine_goes_first(tmp_path):
    assert run_ranks(_turns, args=(str(tmp_path / "turns"),)) == [["00", "01", "10", "11", "20", "21"]] * 2


def _printed():
    accelerator = _accelerator()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        accelerator.print("one", 2, sep="-")
    return out.getvalue()


def test_a_line_is_printed_once():
    assert run_ranks(_printed) == ["one-2\n", ""]


class Selected:
    """A data set that shares itself, as those of the package `datasets` do."""

    def __init__(self, rows):
        self.rows = list(rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        raise AssertionError("rows are to be selected, not read")

    def select(self, rows):
        return Selected(self.rows[row] for row in rows)


def _shared():
    import numpy as np
    import torch

    accelerator = _accelerator()
    given = {"list": [1, 2, 3], "tensor": torch.arange(3), "array": np.arange(3), "set": Selected("abc")}
    with accelerator.split_between_processes(given) as part:
        shares = {name: getattr(share, "rows", None) or [int(x) for x in share] for name, share in part.items()}
    with accelerator.split_between_processes(given["set"], apply_padding=True) as padded:
        shares["padded"] = padded.rows
    return [shares, given["list"], len(given["set"])]


def test_every_kind_of_input_is_shared_and_left_alone():
    first, second = run_ranks(_shared)
    assert first == [
        {"list": [1, 2], "tensor": [0, 1], "array": [0, 1], "set": ["a", "b"], "padded": ["a", "b"]}, [1, 2, 3], 3,
    ]  # fmt: skip
    assert second == [
        {"list": [3], "tensor": [2], "array": [2], "set": ["c"], "padded": ["c", "c"]}, [1, 2, 3], 3,
    ]  # fmt: skip
