"""The search for a batch that fits into memory."""

import gc
import weakref

import pytest
import torch

from drivetrain.training.oom import (
    clear_device_cache,
    find_executable_batch_size,
    release_memory,
    should_reduce_batch_size,
)

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


def _needs(limit, tried):
    def train(batch_size, *args, **kwargs):
        tried.append(batch_size)
        if batch_size > limit:
            raise RuntimeError(OUT_OF_MEMORY)
        return batch_size, args, kwargs

    return train


def test_smaller_batches_until_one_fits():
    tried = []
    search = find_executable_batch_size(_needs(70, tried), starting_batch_size=100)
    assert search("a", b=1) == (64, ("a",), {"b": 1})
    assert tried == [100, 90, 81, 72, 64]


def test_each_call_starts_again():
    tried = []
    search = find_executable_batch_size(_needs(3, tried), starting_batch_size=4)
    assert search()[0] == search()[0] == 3
    assert tried == [4, 3, 4, 3]


def test_as_a_decorator_with_and_without_arguments():
    @find_executable_batch_size
    def plain(batch_size):
        return batch_size

    @find_executable_batch_size(starting_batch_size=8)
    def given(batch_size):
        """Of the user."""
        return batch_size

    assert (plain(), given()) == (128, 8)
    assert (given.__name__, given.__doc__) == ("given", "Of the user.")


def test_the_user_says_how_to_reduce():
    tried = []
    halves = find_executable_batch_size(_needs(3, tried), starting_batch_size=16, reduce_batch_size_fn=lambda n: n // 2)
    assert halves()[0] == 2
    assert tried == [16, 8, 4, 2]
    sizes = iter([5, 1])
    listed = find_executable_batch_size(_needs(3, []), starting_batch_size=16, reduce_batch_size_fn=lambda: next(sizes))
    assert listed()[0] == 1
    stuck = find_executable_batch_size(_needs(3, []), starting_batch_size=16, reduce_batch_size_fn=lambda: 16)
    with pytest.raises(RuntimeError, match="no smaller batch"):
        stuck()


def test_nothing_fits():
    with pytest.raises(RuntimeError, match="no executable batch size was found for train"):
        find_executable_batch_size(_needs(0, []), starting_batch_size=4)()


def test_other_errors_are_passed_on():
    @find_executable_batch_size(starting_batch_size=4)
    def fails(batch_size):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        fails()


def test_the_failed_try_leaves_nothing_behind():
    class Large:
        pass

    alive = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size):
        if batch_size == 2:
            large = Large()
            large.me = large  # type: ignore[attr-defined] - found by the collector only
            alive.append(weakref.ref(large))
            raise RuntimeError(OUT_OF_MEMORY)
        return alive[0]() is None

    assert train() is True


@pytest.mark.parametrize("call", [lambda f: f(8), lambda f: f(batch_size=8), lambda f: f(8, 1)])
def test_the_caller_must_not_give_the_batch_size(call):
    @find_executable_batch_size
    def train(batch_size):
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match=r"the decorator gives it. Call train\(\)"):
        call(train)


def test_a_function_without_arguments_is_refused():
    with pytest.raises(TypeError, match="its first one has to be the batch size"):
        find_executable_batch_size(lambda: None)()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(OUT_OF_MEMORY), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (torch.OutOfMemoryError("anything"), True),
        (RuntimeError("something else"), False),
        (ValueError(OUT_OF_MEMORY), False),
    ],
)
def test_which_errors_are_about_memory(error, expected):
    assert should_reduce_batch_size(error) is expected


def test_memory_is_given_back():
    tensor = torch.ones(10)
    gone = weakref.ref(tensor)
    other = torch.ones(1)
    tensor, other = release_memory(tensor, other)
    assert (tensor, other) == (None, None)
    assert gone() is None
    clear_device_cache(garbage_collection=True)
    assert gc.isenabled()
