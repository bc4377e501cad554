"""The accumulation windows, as the object that libraries look at."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from drivetrain.config.handlers import GradientAccumulationPlugin
from drivetrain.runtime.accumulation import Accumulation

from accelerate._current import Run, current
from accelerate.utils.environment import parse_flag_from_env


class _PluginKwargs(MutableMapping):
    """The options of an Accelerator's windows, as the dictionary that scripts read and write."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def _values(self) -> dict[str, Any]:
        windows = self._run.accumulation
        out: dict[str, Any] = {"num_steps": windows.steps}
        if not windows.sync_with_dataloader:
            out["sync_with_dataloader"] = False
        if windows.sync_each_batch:
            out["sync_each_batch"] = True
        return out | self._run.plugin_extras

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "num_steps":
            self._run.accumulation.steps = GradientAccumulationPlugin(num_steps=value).num_steps or 1
        elif name in ("sync_with_dataloader", "sync_each_batch"):
            setattr(self._run.accumulation, name, bool(value))
        else:
            self._run.plugin_extras[name] = value

    def __delitem__(self, name: str) -> None:
        default = GradientAccumulationPlugin(num_steps=1)
        if hasattr(default, name):
            self[name] = getattr(default, name)
        else:
            del self._run.plugin_extras[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return repr(self._values())


class GradientState:
    """The accumulation windows of the newest Accelerator; `Accelerator.gradient_state` is the same for that one."""

    _tied_to: Run | None = None

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        """
        Args:
            gradient_accumulation_plugin: options that the windows shall have from now on.
        """
        if gradient_accumulation_plugin is not None:
            self.plugin_kwargs.update(gradient_accumulation_plugin.to_kwargs())

    @classmethod
    def _of(cls, run: Run) -> GradientState:
        view = object.__new__(cls)
        view._tied_to = run
        return view

    def _run(self) -> Run:
        return self._tied_to or current.windows

    @staticmethod
    def _reset_state() -> None:
        """Forget the newest Accelerator's windows; that Accelerator keeps them."""
        current.windows = Run(None, Accumulation())  # type: ignore[arg-type]

    @property
    def plugin_kwargs(self) -> MutableMapping[str, Any]:
        """Options of the windows that differ from the default; writing one changes the windows."""
        return _PluginKwargs(self._run())

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends its window."""
        return self._run().accumulation.sync

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._run().accumulation.sync = value

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Say whether the current micro-batch ends its window. For trainers that count by themselves."""
        self._run().accumulation.sync = sync_gradients

    @property
    def num_steps(self) -> int:
        """Micro-batches per optimizer step, per rank."""
        return self._run().accumulation.steps

    @property
    def adjust_scheduler(self) -> bool:
        """False: a schedule never moves inside a window."""
        return False

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the end of a loader ends the window."""
        return self._run().accumulation.sync_with_dataloader

    @property
    def initialized(self) -> bool:
        """True: there are always windows to look at."""
        return True

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being read."""
        return self._run().accumulation.loops.active is not None

    @property
    def active_dataloader(self) -> Any:
        """The prepared loader that is being read, the innermost one; or None."""
        return self._run().accumulation.loops.active

    @property
    def dataloader_references(self) -> list[Any]:
        """None, then the prepared loaders that are being read, the innermost last."""
        return [None, *self._run().accumulation.loops.open]

    def _add_dataloader(self, dataloader: Any) -> None:
        """``dataloader``, which has the attributes of a `Loop`, starts an epoch."""
        self._run().accumulation.loops.enter(dataloader)

    def _remove_dataloader(self, dataloader: Any) -> None:
        """``dataloader`` has ended."""
        self._run().accumulation.loops.leave(dataloader)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the active loader has handed out its last batch. False outside of loops."""
        active = self.active_dataloader
        return active is not None and active.end_of_data

    @property
    def remainder(self) -> int:
        """Real samples in the last global batch of the active loader; -1 for unknown, and outside of loops."""
        active = self.active_dataloader
        return -1 if active is None else active.remainder

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether gradients need no further reduction on XLA; only sharded training reduces them by itself."""
        return parse_flag_from_env("ACCELERATE_USE_FSDP")

    def __repr__(self) -> str:
        return (
            f"Sync Gradients: {self.sync_gradients}\nAt end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\nGradient accumulation plugin: {self.plugin_kwargs}\n"
        )
