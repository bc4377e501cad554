"""Which call initialised CUDA: forks of a process that has done so cannot use the device."""

from __future__ import annotations

import sys
import traceback
from typing import Any


class FirstCall:
    """Remembers the stack at the moment torch initialises CUDA, if it was asked to before that."""

    def __init__(self) -> None:
        self.stack: list[traceback.FrameSummary] = []
        self._watching = False

    def watch(self) -> None:
        """From now on, remember. Without effect where torch is not imported, or it is too late."""
        torch = sys.modules.get("torch")
        if self._watching or torch is None or torch.cuda.is_initialized():
            return
        self._watching = True
        torch.cuda._lazy_call(self.remember)  # torch runs such calls when it initialises CUDA

    def remember(self) -> None:
        """Keep the stack of the caller, without the frames of torch."""
        self.stack = [frame for frame in traceback.extract_stack()[:-1] if "/torch/" not in frame.filename]

    def told(self) -> str:
        """One or two sentences about the call, as far as it is known."""
        if self.stack:
            frame = self.stack[-1]
            return f"It was this call: {frame.filename}, line {frame.lineno}: {frame.line or frame.name}"
        on_device = names_on_device()
        if on_device:
            return f"These variables live on the device: {', '.join(on_device)}. Create them inside the function."
        return (
            "The call that did it cannot be named: it came before drivetrain was imported, or torch was imported after "
            "notebook_launcher was."
        )


FIRST_CALL = FirstCall()


def names_on_device() -> list[str]:
    """Variables of the notebook or script that are tensors or modules on an accelerator."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    found = []
    for name, value in list(vars(sys.modules["__main__"]).items()):
        one: Any = next(value.parameters(), None) if isinstance(value, torch.nn.Module) else value
        if isinstance(one, torch.Tensor) and one.device.type not in ("cpu", "meta"):
            found.append(name)
    return found


def check_not_started() -> None:
    """Refuse to fork a process whose CUDA is initialised.

    Raises:
        LaunchError: naming the call that did it, as far as that is known.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    from drivetrain.core.errors import LaunchError

    raise LaunchError(
        "CUDA is already initialised in this process, and a forked process cannot use it then. "
        f"{FIRST_CALL.told()} Restart the notebook, and make such calls only inside the launched function."
    )
