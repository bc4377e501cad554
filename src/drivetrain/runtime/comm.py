"""Collectives over the ranks of a run. `LocalComm` is the one-process null object, so no caller asks if it is alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.runtime.agreement import Agreement

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


class Comm(Protocol):
    """What the library needs of a group of processes. Every method is called by all ranks, in the same order."""

    rank: int
    world_size: int

    def agree(self, op: str, what: str, note: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """Check that all ranks call ``op`` on the same ``what`` (shapes, dtypes, structure).

        Returns the ``note`` of every rank, by rank: two numbers that may differ and travel along for free.

        Raises:
            CollectiveError: on every rank, when they differ or a rank does not come in time.
        """
        ...

    def barrier(self) -> None:
        """Wait for all ranks."""
        ...

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """Element-wise over the ranks. Shape and dtype of ``x``; ``x`` itself is left alone."""
        ...

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """``x`` of every rank, by rank. Shape and dtype must be equal on all ranks."""
        ...

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """``x`` of rank ``src``, on every rank; ``x`` itself is left alone."""
        ...

    def all_gather_object(self, obj: Any) -> list[Any]:
        """``obj`` of every rank, by rank."""
        ...

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """``obj`` of rank ``src``, on every rank."""
        ...

    def explain(self, error: RuntimeError) -> RuntimeError:
        """A time-out in torch's own collective becomes a report of who is missing; any other error stays itself."""
        ...

    def close(self) -> None:
        """End the group, if this object started it."""
        ...


class LocalComm:
    """One process."""

    rank, world_size = 0, 1

    def agree(self, op: str, what: str, note: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """Nobody to disagree with."""
        return [note]

    def barrier(self) -> None:
        """Nobody to wait for."""

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """A copy of ``x``."""
        return x.clone()

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """A copy of ``x``, alone in a list."""
        return [x.clone()]

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """A copy of ``x``."""
        return x.clone()

    def all_gather_object(self, obj: Any) -> list[Any]:
        """``obj``, alone in a list."""
        return [obj]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """``obj`` itself."""
        return obj

    def explain(self, error: RuntimeError) -> RuntimeError:
        """The error itself."""
        return error

    def close(self) -> None:
        """Nothing to end."""


class TorchComm:
    """The default group of ``torch.distributed``: started here, or joined when somebody has started it before.

    Beside it stands one small gloo group on the CPU for what is not tensors of the user: agreement, objects, barriers.
    """

    # torch's default group is global to the process, so its side group is too; keyed by the default group itself.
    _sides: ClassVar[weakref.WeakKeyDictionary[Any, Agreement]] = weakref.WeakKeyDictionary()

    def __init__(
        self,
        backend: str,
        device: torch.device,
        *,
        timeout: timedelta | None = None,
        collective_timeout: float | None = None,
        rank: int = -1,
        world_size: int = -1,
        init_method: str | None = None,
    ) -> None:
        """
        Args:
            backend: name of a ``torch.distributed`` backend, such as ``"gloo"`` or ``"cuda:nccl,cpu:gloo"``.
            device: the device of this rank.
            timeout: how long torch's own collectives wait. None: ``collective_timeout``, or torch's default.
            collective_timeout: seconds that a collective of the user waits for the other ranks. None: ``timeout``.
        """
        self.device = device
        if timeout is None and collective_timeout is not None:
            timeout = timedelta(seconds=collective_timeout)  # gradients wait as long as what the user calls
        self.owns_group = not dist.is_initialized()
        if self.owns_group:
            dist.init_process_group(
                backend,
                init_method=init_method,
                timeout=timeout,
                rank=rank,
                world_size=world_size,
                device_id=None if device.type == "cpu" else device,
            )
        self.backend = str(dist.get_backend())
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        default = dist.group.WORLD
        self._default = weakref.ref(default)
        if default not in self._sides:
            self._sides[default] = Agreement(
                seconds=collective_timeout or (timeout or _torch_timeout(backend)).total_seconds()
            )
        self._side = self._sides[default]
        if collective_timeout is not None:
            self._side.wait(collective_timeout)
            if not self.owns_group and timeout is not None:
                dist.distributed_c10d._set_pg_timeout(timeout, default)

    def agree(self, op: str, what: str, note: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """See `Comm.agree`."""
        return self._side.check(op, what, note)

    def barrier(self) -> None:
        """See `Comm.barrier`."""
        self._side.check("wait_for_everyone", "")

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """See `Comm.all_reduce`. ``op``: sum, max, min or product."""
        x = x.detach().clone(memory_format=torch.contiguous_format)
        with self._explained("all_reduce"):
            dist.all_reduce(x, op=_OPS[op])
        return x

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """See `Comm.all_gather`."""
        x = x.detach().contiguous()
        out = [torch.empty_like(x) for _ in range(self.world_size)]
        with self._explained("all_gather"):
            dist.all_gather(out, x)
        return out

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """See `Comm.broadcast`."""
        x = x.detach().clone(memory_format=torch.contiguous_format)
        with self._explained("broadcast"):
            dist.broadcast(x, src=src)
        return x

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `Comm.all_gather_object`. Between the ranks of one run objects travel pickled."""
        out: list[Any] = [None] * self.world_size
        with self._explained("all_gather_object"):
            dist.all_gather_object(out, obj, group=self._side.group)
        return out

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `Comm.broadcast_object`."""
        box = [obj]
        with self._explained("broadcast_object"):
            dist.broadcast_object_list(box, src=src, group=self._side.group)
        return box[0]

    def explain(self, error: RuntimeError) -> RuntimeError:
        """See `Comm.explain`."""
        return self._side.explain("a collective of torch (gradients, buffers)", error)

    @contextmanager
    def _explained(self, op: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            explained = self._side.explain(op, error)
            if explained is error:
                raise
            raise explained from error

    def close(self) -> None:
        """End the default group and its side group, if this object started it and nobody has ended it since."""
        if self.owns_group:
            self.owns_group = False
            self._side.close()
            if dist.is_initialized() and dist.group.WORLD is self._default():
                self._sides.pop(dist.group.WORLD, None)
                dist.destroy_process_group()


def _torch_timeout(backend: str) -> timedelta:
    from drivetrain.config.handlers import GLOO_TIMEOUT, NCCL_TIMEOUT

    return NCCL_TIMEOUT if "nccl" in backend else GLOO_TIMEOUT
