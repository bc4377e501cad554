"""The part of the `Accelerator` that a training step calls: accumulate, backward, clip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.config.handlers import AutocastKwargs, ProfileKwargs
from drivetrain.core.errors import ConfigError, InputError, UsageError
from drivetrain.precision.autocast import autocast
from drivetrain.runtime.accumulation import Accumulation, Window, check_one_kind
from drivetrain.session import Session
from drivetrain.training.optimizer import PreparedOptimizer
from drivetrain.training.profile import profiled
from drivetrain.transforms import compile as compiling


class TrainingLoop:
    """What one step is made of."""

    session: Session
    accumulation: Accumulation
    autocast_handler: AutocastKwargs | None
    profile_handler: ProfileKwargs | None
    _optimizers: list[PreparedOptimizer]
    _models: list[nn.Module]
    _dataloaders: list[Any]

    # -- windows -------------------------------------------------------------------------------------------------

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """One micro-batch of ``models``: gradients add up, and the last one of a window lets the optimizer move.

            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, batch))
                    optimizer.step()
                    optimizer.zero_grad()

        A window ends after `gradient_accumulation_steps` micro-batches, and with the loader's last batch; a shorter
        window is divided by its own length. Models that are given together share a window; others have their own.
        """
        return _MicroBatch(self, models)

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends its window: gradients are reduced and the optimizer moves."""
        return self.accumulation.current.sync

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.accumulation.current.sync = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches per optimizer step, per rank."""
        return self.accumulation.steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"gradient_accumulation_steps={value!r}: a window has at least one micro-batch.")
        self.accumulation.steps = value

    @property
    def step(self) -> int:
        """Micro-batches since the last end of a loader."""
        return self.accumulation.current.step

    @step.setter
    def step(self, value: int) -> None:
        self.accumulation.current.step = value

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Backward passes inside keep their gradients on this rank."""
        return self.session.strategy.no_sync(model)

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, weight: float | Tensor | None = None, **kwargs: Any) -> None:
        """Add the gradients of ``loss`` to those of the window.

        Without ``weight`` the loss is a mean over the micro-batch, and the window's gradient is the mean of its
        micro-batches. With ``weight`` the loss is a *sum*, over ``weight`` tokens (or samples): the window's
        gradient is then the sum over all its micro-batches and ranks, divided once, at the end, by the sum of all
        weights. That is exact for micro-batches, and ranks, of different size.

        Args:
            loss: one element.
            weight: how many tokens or samples ``loss`` is the sum of, on this rank; 0 is allowed.
            kwargs: for ``torch.Tensor.backward``.

        Raises:
            InputError: ``loss`` is no tensor, or has several elements.
            UsageError: one window got means and weighted sums.
            CollectiveError: a rank stayed away from the reduction; which one, and its line.
        """
        if not isinstance(loss, Tensor) or (loss.numel() != 1 and "gradient" not in kwargs):
            raise InputError(_not_a_loss(loss))
        accumulation = self.accumulation
        window = accumulation.current
        if kwargs and "learning_rate" in kwargs and self._lomo_optimizers():
            if weight is not None:
                raise UsageError("backward(loss, weight=...) divides at the end of a window; LOMO updates before that.")
            return self.lomo_backward(loss / accumulation.divisor(window), kwargs["learning_rate"])
        if weight is None and window.weight is None:
            divisor: Any = window.count if accumulation.inside and window.sync else accumulation.steps
        else:
            divisor = self._weighted_divisor(window, weight)
        if accumulation.inside:
            if window.applied is not None and window.applied is not divisor and not _equal(window.applied, divisor):
                self.session.strategy.rescale_gradients(self._parameters_of(window), window.applied / divisor)
            window.applied = divisor
        window.reached_backward = True
        self.session.strategy.backward(
            loss, divisor=None if isinstance(divisor, int) and divisor == 1 else divisor, sync=window.sync, **kwargs
        )
        return None

    def _weighted_divisor(self, window: Window, weight: float | Tensor | None) -> Any:
        """1 inside a window; at its end the sum of all weights, over the number of ranks that gradients are averaged
        over."""
        inside = self.accumulation.inside
        if inside:
            check_one_kind(window, weight)
        elif self.accumulation.steps > 1:
            raise UsageError(
                "backward(loss, weight=...) divides at the end of a window, but is called outside of one. Put the step "
                "into `with accelerator.accumulate(model):`."
            )
        if self.accumulation.joined:
            raise UsageError(
                "backward(loss, weight=...) sums the weights of all ranks, but inside join_uneven_inputs some may have "
                "no batch left to give one. Use even_batches=True and weight=accelerator.num_valid without it."
            )
        world = self.session.world
        own = torch.as_tensor(weight, dtype=world.platform.sum_dtype, device=self.device).detach()  # type: ignore[attr-defined]
        if inside:
            own = window.weight = own if window.weight is None else window.weight + own
            if not window.sync:
                return 1
        total = world.comm.all_reduce(own) / world.topology.world_size
        return torch.where(total == 0, torch.ones_like(total), total)  # nothing was weighed: the sum stays what it is

    def _parameters_of(self, window: Window) -> Iterable[Tensor]:
        models = [model for ref in window.models if (model := ref()) is not None] or self._models
        seen = {id(p): p for model in models for p in model.parameters()}
        if not window.models:
            seen |= {id(p): p for o in self._optimizers for g in o.param_groups for p in g["params"]}
        return seen.values()

    def lomo_backward(self, loss: Tensor, learning_rate: float) -> None:
        """Backward and update in one, for optimizers of the LOMO family.

        Raises:
            ConfigError: there is no learning rate, or no such optimizer was prepared.
        """
        found = self._lomo_optimizers()
        if learning_rate is None or not found:
            what = "no learning_rate was given" if learning_rate is None else "no LOMO optimizer was prepared"
            raise ConfigError(f"lomo_backward updates the weights during backward, but {what}.")
        for optimizer in found:
            optimizer.optimizer.fused_backward(loss, learning_rate)  # type: ignore[attr-defined]

    def _lomo_optimizers(self) -> list[PreparedOptimizer]:
        return [o for o in self._optimizers if o.moves_in_backward]

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any prepared optimizer skipped its last step, because a gradient had overflowed in fp16."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    # -- clipping ------------------------------------------------------------------------------------------------

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide gradients by the loss scale of fp16: those of ``optimizer`` (one, or several), else of all."""
        chosen = (
            self._optimizers if optimizer is None else optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        )
        for one in chosen:
            while isinstance(one, PreparedOptimizer):
                one = one.optimizer
            if any(p.grad is not None for group in one.param_groups for p in group["params"]):
                self.session.strategy.unscale(one)

    def clip_grad_norm_(self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2) -> Tensor:
        """Scale the gradients of the window, in place, so that their norm is at most ``max_norm``.

        Returns the norm before clipping: 0-d, over all ``parameters`` and, where they are sharded, all shards. Inside a
        window nothing is clipped, since the gradients are not complete; the norm so far is returned.
        """
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if not self.accumulation.current.sync:
            gradients = [p.grad for p in parameters if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients, norm_type=norm_type)
            scaler = self.session.strategy.scaler
            return norm if scaler is None else norm / scaler.get_scale()
        self._unscale_for(parameters)
        return self.session.strategy.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Limit each element of the window's gradients, in place, to ``[-clip_value, clip_value]``.

        Inside a window nothing is clipped, since the gradients are not complete.
        """
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if self.accumulation.current.sync:
            self._unscale_for(parameters)
            self.session.strategy.clip_grad_value(parameters, clip_value)

    def _unscale_for(self, parameters: list[Tensor]) -> None:
        """Unscale the optimizers that own any of ``parameters``; another's gradients may not be complete yet."""
        if self.session.strategy.scaler is None:
            return
        wanted = {id(p) for p in parameters}
        owners = [o for o in self._optimizers if any(id(p) in wanted for g in o.param_groups for p in g["params"])]
        self.unscale_gradients(owners)

    # -- around --------------------------------------------------------------------------------------------------

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Operations inside run in the run's mixed precision; nothing happens where there is none."""
        policy = self.session.precision
        handler = autocast_handler or self.autocast_handler
        if not policy.mixed:
            return nullcontext()
        if handler is not None:
            policy = replace(policy, autocast_enabled=handler.enabled, cache_enabled=handler.cache_enabled)
        return autocast(policy, self.device.type)  # type: ignore[attr-defined]

    @contextmanager
    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Let ranks have different numbers of batches inside: those that are done answer for those that are not.

        Args:
            joinables: prepared models, and optimizers that torch's `Join` knows.
            even_batches: whether loaders pad inside; None: as they were prepared. True: there is nothing to join, and
                nothing is.
        """
        samplers = [s for loader in self._dataloaders if (s := _evening_sampler(loader)) is not None]
        before = [s.even_batches for s in samplers]
        if even_batches is not None:
            for sampler in samplers:
                sampler.even_batches = even_batches
        known_even = bool(samplers) and all(s.even_batches for s in samplers)
        uneven = not known_even if even_batches is None else not even_batches
        parts = [o.optimizer if isinstance(o, PreparedOptimizer) else compiling.original(o) for o in joinables]
        try:
            with nullcontext() if even_batches else self.session.strategy.join(parts):
                self.accumulation.joined = uneven and self.session.world.topology.is_distributed
                yield
        finally:
            self.accumulation.joined = False
            for sampler, value in zip(samplers, before, strict=True):
                sampler.even_batches = value

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[torch.profiler.profile]:
        """Profile the body; with ``output_trace_dir`` each rank writes ``profile_<rank>.json`` there, and all wait."""
        options = profile_handler or self.profile_handler or ProfileKwargs()
        with profiled(options, self.session.world.topology.rank) as profiler:
            yield profiler
        if options.output_trace_dir is not None:
            self.session.world.control.wait_for_everyone()


_WINDOWS_APART = (
    "inside join_uneven_inputs the ranks' loaders end at different micro-batches, and so would their windows. Give "
    "GradientAccumulationPlugin(num_steps=..., sync_with_dataloader=False), so that the windows of all end together."
)


class _MicroBatch:
    """What `accumulate` returns. A class, not a generator: it is entered at every step."""

    __slots__ = ("_loop", "_models", "_outer", "_stack")

    def __init__(self, loop: TrainingLoop, models: tuple[nn.Module, ...]) -> None:
        self._loop, self._models, self._outer, self._stack = loop, models, None, None

    def __enter__(self) -> None:
        accumulation = self._loop.accumulation
        if accumulation.joined and accumulation.steps > 1 and accumulation.sync_with_dataloader:
            raise UsageError(_WINDOWS_APART)
        self._outer = accumulation.current if accumulation.inside else None
        sync = accumulation.advance(self._models)
        if sync or accumulation.alone or accumulation.sync_each_batch:
            return
        stack = ExitStack()
        for model in self._models:
            stack.enter_context(self._loop.no_sync(model))
        self._stack = stack

    def __exit__(self, *exc_info: Any) -> None:
        self._loop.accumulation.leave(self._outer, failed=exc_info[0] is not None)
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(*exc_info)


def _evening_sampler(loader: Any) -> Any:
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if hasattr(sampler, "even_batches") else None


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a == b


def _not_a_loss(loss: Any) -> str:
    if not isinstance(loss, Tensor):
        return (
            f"backward got a {type(loss).__name__}, not a tensor. Give the loss that the model's output was made into."
        )
    return (
        f"backward got a tensor of shape {list(loss.shape)}, which is not one number. Reduce it first: loss.mean(), or "
        "loss.sum() with weight=number of elements."
    )
