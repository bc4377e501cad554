"""The part of the `Accelerator` that exchanges values between the ranks."""

from __future__ import annotations

from typing import Any

from drivetrain.core.errors import UsageError
from drivetrain.runtime import collectives
from drivetrain.runtime.accumulation import Accumulation
from drivetrain.runtime.log import Once, get_logger
from drivetrain.session import Session
from drivetrain.training import metrics

logger = get_logger(__name__)


class Collectives:
    """Every method here is called by all ranks, in the same order; that is checked before data moves."""

    session: Session
    accumulation: Accumulation
    _once: Once
    _triggered: bool

    def gather(self, tensor: Any) -> Any:
        """Each tensor of ``tensor`` (at any depth), concatenated along dimension 0 over the ranks, by rank.

        ``[n, ...]`` becomes ``[num_processes * n, ...]``; a 0-d tensor counts as ``[1]``. All ranks get the result.

        Raises:
            InputError: a leaf is not a tensor.
            CollectiveError: on every rank, when structures, shapes or dtypes differ.
        """
        return collectives.gather(tensor, self.session.world.comm)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather what belongs to the current batch, each sample once: padding of the last batch is left out.

        Tensors are concatenated along dimension 0. Other things are gathered whole: lists are joined, tuples and
        mappings keep their form. A sample may have several rows.

        Args:
            use_gather_object: whether tensors, too, travel as objects (they may then differ in shape).
        """
        return metrics.gather_for_metrics(
            input_data,
            self.session.world.comm,
            self.accumulation.loops.active,
            use_gather_object=use_gather_object,
            once=self._once,
            logger=logger,
        )

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Each tensor of ``tensor``, combined element by element over the ranks, times ``scale``.

        Shapes stay; the tensors given are left alone. ``reduction``: sum, mean, max, min or none. All ranks get it.

        Raises:
            ConfigError: the reduction is unknown.
            CollectiveError: on every rank, when structures, shapes or dtypes differ.
        """
        return collectives.reduce(tensor, self.session.world.comm, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Each tensor of ``tensor``, padded with ``pad_index`` along ``dim`` to the longest of all ranks."""
        return collectives.pad_across_processes(tensor, self.session.world.comm, dim, pad_index, pad_first)

    def broadcast(self, tensor: Any, from_process: int = 0) -> Any:
        """Each tensor of ``tensor`` as it is on rank ``from_process``; the tensors given are left alone.

        Raises:
            InputError: a leaf is not a tensor.
            CollectiveError: on every rank, when structures, shapes or dtypes differ.
        """
        return collectives.broadcast(tensor, self.session.world.comm, from_process)

    def gather_object(self, obj: Any) -> list[Any]:
        """The lists of all ranks joined, by rank; an object that is no list counts as a list of one."""
        return collectives.gather_object(obj, self.session.world.comm)

    def broadcast_object_list(self, objects: list[Any], from_process: int = 0) -> list[Any]:
        """Replace the items of ``objects``, in place, by those of rank ``from_process``. Returns the list."""
        return collectives.broadcast_object_list(objects, self.session.world.comm, from_process)

    def set_trigger(self) -> None:
        """Raise a flag on this rank, which `check_trigger` sees on all.

        if loss > limit:
            accelerator.set_trigger()
        if accelerator.check_trigger():  # on every rank, at the same place
            break
        """
        self._triggered = True

    def check_trigger(self) -> bool:
        """Whether any rank has raised its flag since the last check; lowers it on all. Every rank calls this."""
        notes = self.session.world.comm.agree("check_trigger", "", note=(int(self._triggered), 0))
        self._triggered = False
        return any(note[0] for note in notes)

    @property
    def num_valid(self) -> int:
        """How many samples of the current batch on this rank are real, and not padding for ranks to have as many.

        Raises:
            UsageError: no prepared loader is being read, or it cannot know.
        """
        loop = self.accumulation.loops.active
        if loop is None or loop.num_valid is None:
            why = "no prepared loader is being read" if loop is None else "its loader does not know"
            raise UsageError(
                f"num_valid says how many samples of the current batch are real, but {why}. Read it inside the loop "
                "over a loader that went through prepare()."
            )
        return loop.num_valid
