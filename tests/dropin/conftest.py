"""Each test of the drop-in starts without shared state, and computes on the processor."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_state(_isolated: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState

    def reset() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    reset()
    yield
    reset()
