"""The `Accelerator` of existing scripts: the library's own, with the attributes that only they look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import drivetrain.accelerator
from drivetrain.config.enums import FP8BackendType
from drivetrain.core.errors import UsageError
from drivetrain.session import Session, World
from drivetrain.tracking.base import Tracker
from drivetrain.training.scheduler import Unit

from accelerate import _later
from accelerate._current import Run, install, opened_world
from accelerate._names import attach
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import registered

_CHECKPOINTS = "checkpoints of the whole training state"


class Accelerator(drivetrain.accelerator.Accelerator):
    """`drivetrain.Accelerator`, except for three things.

    It reads the variables ``ACCELERATE_*``, which launchers and trainers of this API set; one call of a schedule's
    ``step()`` moves it once for each process (give ``schedule_unit="optimizer_step"`` for once in all); and the shared
    state objects of `accelerate.state` show the newest one of it.
    """

    _contract_names: ClassVar[bool] = True
    _default_unit: ClassVar[Unit] = "process"
    _tracker_classes: ClassVar[Mapping[str, type[Tracker]]] = registered

    fp8_recipe_handler = ao_recipe_handler = te_recipe_handler = msamp_recipe_handler = None
    has_fp8_handler = fp8_enabled = delayed_fp8_autocast = False
    deepspeed_engine_wrapped = flag_tensor = None

    def _open_world(self) -> World:
        opened = opened_world()
        if opened is not None and opened.topology.device.type == "cpu" and not self.settings["cpu"]:
            self.settings = self.settings.with_values({"cpu": True}, "the PartialState that was made before")
        return super()._open_world()

    def _open_session(self, world: World) -> Session:
        session = super()._open_session(world)
        self._run = Run(session, self.accumulation, self.dynamo_plugin)
        install(self._run)
        return session

    def _remember(self, item: Any, result: Any) -> None:
        super()._remember(item, result)
        result._is_accelerate_prepared = True  # what libraries ask an object that they are handed

    # -- views ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> AcceleratorState:
        """How this Accelerator computes."""
        return AcceleratorState._of(self._run)

    @property
    def gradient_state(self) -> GradientState:
        """The accumulation windows of this Accelerator."""
        return GradientState._of(self._run)

    # -- strategies that come later ------------------------------------------------------------------------------

    @property
    def deepspeed_plugin(self) -> None:
        """The DeepSpeed plugin of this run: None, it has none."""
        return None

    @property
    def parallelism_config(self) -> None:
        """How a model is spread over ranks: None, it is not."""
        return None

    @property
    def torch_device_mesh(self) -> None:
        """The device mesh of the run: None, it has none."""
        return None

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by ``fully_shard``."""
        return False

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether several kinds of parallelism are combined."""
        return self.is_fsdp2

    @property
    def fp8_backend(self) -> FP8BackendType:
        """Which library computes in eight bits: none."""
        return FP8BackendType.NO

    @property
    def tensor_parallel_rank(self) -> int:
        """Rank among those that share one layer.

        Raises:
            UsageError: the run has no parallelism config.
        """
        self._no_mesh("tensor_parallel_rank")

    @property
    def data_parallel_rank(self) -> int:
        """Rank among the replicas of a mesh.

        Raises:
            UsageError: the run has no parallelism config.
        """
        self._no_mesh("data_parallel_rank")

    @property
    def data_parallel_shard_rank(self) -> int:
        """Rank among the shards of a mesh.

        Raises:
            UsageError: the run has no parallelism config.
        """
        self._no_mesh("data_parallel_shard_rank")

    @property
    def pipeline_parallel_rank(self) -> int:
        """Rank among the stages of a pipeline.

        Raises:
            NotAvailable: always.
        """
        raise _later.NotAvailable(_later.text("pipeline_parallel_rank", "pipeline parallelism"))

    @property
    def context_parallel_rank(self) -> int:
        """Rank among those that share one sequence.

        Raises:
            NotAvailable: always.
        """
        raise _later.NotAvailable(_later.text("context_parallel_rank", "context parallelism"))

    @staticmethod
    def _no_mesh(name: str) -> NoReturn:
        raise UsageError(f"{name} is a place in a device mesh, and this run has none. Read process_index instead.")

    @contextmanager
    def maybe_context_parallel(
        self,
        buffers: list[Any] | None = None,
        buffer_seq_dims: list[int] | None = None,
        no_restore_buffers: set[Any] | None = None,
    ) -> Iterator[None]:
        """Share sequences between ranks inside, where the run does so; this version never does, so nothing happens."""
        yield

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: Any) -> Any:
        """A loader that shares sequences under DeepSpeed.

        Raises:
            NotAvailable: always.
        """
        raise _later.NotAvailable(_later.text("deepspeed_ulysses_dl_adapter", "sequence parallelism"))

    def save_state(
        self, output_dir: str | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any
    ) -> str:
        """Write the state of the whole training.

        Raises:
            NotAvailable: always. `save_model` writes the weights.
        """
        raise _later.NotAvailable(_later.text("save_state", _CHECKPOINTS))

    def load_state(
        self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **load_model_func_kwargs: Any
    ) -> None:
        """Restore the state of the whole training.

        Raises:
            NotAvailable: always.
        """
        raise _later.NotAvailable(_later.text("load_state", _CHECKPOINTS))

    @property
    def has_lomo_optimizer(self) -> bool:
        """Whether an optimizer of the LOMO family was prepared."""
        return bool(self._lomo_optimizers())


__getattr__, __dir__ = attach(__name__)
