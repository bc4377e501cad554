"""The optimizer the user holds: it moves only when the accumulation window ends, and tells whether it moved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from drivetrain.core.errors import ConfigError
from drivetrain.core.tree import map_leaves
from drivetrain.precision import scaler as scaling
from drivetrain.runtime.accumulation import Accumulation
from drivetrain.strategies.base import Strategy


class PreparedOptimizer(torch.optim.Optimizer):
    """Wraps `.optimizer`. Whatever is not defined here is the inner optimizer's: attributes, state, step hooks."""

    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool = True,
        scaler: GradScaler | None = None,
        *,
        strategy: Strategy | None = None,
        accumulation: Accumulation | None = None,
        device: torch.device | None = None,
    ) -> None:
        """
        Args:
            optimizer: the user's.
            device_placement: whether its state is moved to ``device``, when one is given.
            scaler: the loss scaler, for use without a strategy.
            strategy: who carries out the step. None: the optimizer itself, through ``scaler`` if there is one.
            accumulation: the windows that gate the step. None: every step is a step.
        """
        self.__dict__["optimizer"] = optimizer
        self.scaler = scaler
        self._strategy: Strategy | None = None
        self._accumulation = accumulation if accumulation is not None else Accumulation()
        if strategy is not None:
            self.follow(strategy, self._accumulation)
        self._skipped = False
        self.moves_in_backward = hasattr(optimizer, "fused_backward")
        """Whether the optimizer is of the LOMO family."""
        self._takes_set_to_none = "set_to_none" in inspect.signature(optimizer.zero_grad).parameters
        if device_placement and device is not None:
            _place_state(optimizer, device)

    def follow(self, strategy: Strategy, accumulation: Accumulation) -> None:
        """Step as ``strategy`` does, at the end of windows of ``accumulation``, from now on."""
        self._strategy, self._accumulation, self.scaler = strategy, accumulation, strategy.scaler

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in self.__dict__:  # half-built, as while unpickling
            raise AttributeError(name)
        return getattr(self.__dict__["optimizer"], name)

    # `torch.optim.Optimizer` defines these names, so `__getattr__` would never see them.

    @property
    def state(self) -> Any:
        """State of the inner optimizer."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the inner optimizer, the very list."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: list[dict[str, Any]]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.optimizer.param_groups = param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the inner optimizer."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.add_param_group`."""
        self.optimizer.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer.load_state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """See `torch.optim.Optimizer.state_dict`."""
        return self.optimizer.state_dict()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients, if the window has ended; inside a window they are being accumulated.

        Raises:
            ConfigError: ``set_to_none`` is given to an optimizer that does not know it.
        """
        if not self._accumulation.current.sync:
            return
        if self._strategy is not None:
            self._strategy.zeroing(self.optimizer)
        if self._takes_set_to_none:
            self.optimizer.zero_grad(set_to_none=True if set_to_none is None else set_to_none)
        elif set_to_none is None:
            self.optimizer.zero_grad()
        else:
            raise ConfigError(f"{type(self.optimizer).__name__}.zero_grad takes no set_to_none. Call it without.")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Move the parameters, if the window has ended. Returns what the inner optimizer returns: the closure's loss.

        Inside a window nothing happens, and the closure is not called: the result is None. So it is with optimizers of
        the LOMO family, which have moved in backward.
        """
        if not self._accumulation.current.sync or self.moves_in_backward:
            return None
        if self._strategy is not None:
            stepped, result = self._strategy.step(self.optimizer, closure)
        elif self.scaler is not None:
            stepped, result = scaling.step(self.scaler, self.optimizer, closure)
        else:
            stepped, result = True, self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._skipped = not stepped
        self._accumulation.current.stepped = True
        return result

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step of a window was skipped, because a gradient had overflowed in fp16."""
        return self._skipped

    def train(self) -> None:
        """Schedule-free optimizers have a training mode; others have none, and nothing happens."""
        self._set_mode("train")

    def eval(self) -> None:
        """Schedule-free optimizers have an evaluation mode; others have none, and nothing happens."""
        self._set_mode("eval")

    def _set_mode(self, name: str) -> None:
        for holder in (self.optimizer, getattr(self.optimizer, "optimizer", None)):
            if callable(getattr(holder, name, None)):
                getattr(holder, name)()
                return

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_strategy", "_accumulation")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.setdefault("_strategy", None)
        self.__dict__.setdefault("_accumulation", Accumulation())


def _place_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move what the optimizer remembers of each parameter to ``device``, in place; dtypes stay.

    Its ``step`` counters stay on the CPU, where torch keeps them so that reading one does not wait for the device.
    """
    for kept in optimizer.state.values():
        for name, value in kept.items() if isinstance(kept, dict) else ():
            if isinstance(value, torch.Tensor) and value.device != device and name != "step":
                kept[name] = value.to(device)


def move_to_device(state: Any, device: torch.device | str) -> Any:
    """``state`` with every tensor, at any depth, on ``device``; a new structure."""
    return map_leaves(lambda x: x.to(device), state, leaf=lambda x: isinstance(x, torch.Tensor))
