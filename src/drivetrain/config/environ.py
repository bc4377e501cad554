"""The one place that touches the process environment: where this process stands among the ranks, and raw variables."""

from __future__ import annotations

import os

from drivetrain.core.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TRUE_WORDS = ("1", "true", "t", "yes", "y", "on")
FALSE_WORDS = ("0", "false", "f", "no", "n", "off")

# Rows: rank, world size, local rank, local world size, node rank, number of nodes. First row with a rank wins.
# Slurm rows use the step's own counts: in a batch script SLURM_NTASKS counts tasks that do not run this program.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        None,
        None,
    ),
    (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        None,
        None,
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", None, None),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", None, "SLURM_NODEID", "SLURM_STEP_NUM_NODES"),
)

DEFAULT_PORT = 29500


class ProcessEnv:
    """Where this process stands, as its launcher said.

    `launched` says whether a launcher set a rank at all; without one this is rank 0 of 1.
    `master_addr` and `master_port` are None when nothing tells them.
    """

    __slots__ = (
        "rank",
        "world_size",
        "local_rank",
        "local_world_size",
        "node_rank",
        "num_nodes",
        "master_addr",
        "master_port",
        "launched",
    )

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        local_world_size: int = 1,
        node_rank: int = 0,
        num_nodes: int = 1,
        master_addr: str | None = None,
        master_port: int | None = None,
        launched: bool = False,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.node_rank = node_rank
        self.num_nodes = num_nodes
        self.master_addr = master_addr
        self.master_port = master_port
        self.launched = launched

    def __repr__(self) -> str:
        return "ProcessEnv(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__) + ")"


def process_env(environ: Mapping[str, str] | None = None) -> ProcessEnv:
    """Read the rank variables of torchrun, Open MPI, MVAPICH, Intel MPI/MPICH or Slurm, in that order.

    Raises:
        ConfigError: a rank variable is not a number, or the rank does not fit into the world.
    """
    source = os.environ if environ is None else environ
    for row in RANK_VARIABLES:
        rank = _number(source, row[0])
        size = _number(source, row[1])
        if rank is None or (size is None and row[0] != "RANK"):
            continue
        return _placed(source, row, rank, 1 if size is None else size)
    return ProcessEnv(master_addr=source.get("MASTER_ADDR"), master_port=_number(source, "MASTER_PORT"))


def read(name: str) -> str | None:
    """The variable's text, or None when it is not set."""
    return os.environ.get(name)


def snapshot() -> dict[str, str]:
    """A copy of the whole environment, for handing to a child process."""
    return dict(os.environ)


def write(values: Mapping[str, str | None]) -> None:
    """Set variables of this process; a value of None removes the variable."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class patched:  # noqa: N801 - reads as a verb in `with patched(RANK="0"):`
    """Context manager: set variables (None removes one), and restore what was there before, also after an error."""

    def __init__(self, **values: str | None) -> None:
        self._values = values
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> patched:
        self._before = {name: os.environ.get(name) for name in self._values}
        write(self._values)
        return self

    def __exit__(self, *exc_info: object) -> None:
        write(self._before)


def parse_flag(text: str, name: str) -> bool:
    """Truth of a word such as "true", "no", "1" or "off", in any case.

    Raises:
        ConfigError: any other word; ``name`` says where the text came from.
    """
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ConfigError(f"{name} is {text!r}, which is no truth value. Use true or false (also yes/no, on/off, 1/0).")


def _placed(source: Mapping[str, str], row: tuple[str | None, ...], rank: int, size: int) -> ProcessEnv:
    if not 0 <= rank < size:
        raise ConfigError(
            f"{row[0]}={rank} does not fit into {row[1]}={size}. Ranks count from 0 to the world size minus 1; "
            "set both variables, or neither."
        )
    local_rank, local_size, node_rank, nodes = (_number(source, name) for name in row[2:])
    if row[0] == "SLURM_PROCID":
        local_size = _slurm_tasks_here(source, node_rank or 0)
    if nodes is None and local_size is None and local_rank is None:
        local_size, local_rank = 1, 0  # one process a host, as Kubernetes operators start them
    if local_size is None:
        local_size = size // nodes if nodes else size
    local_size = max(1, local_size)
    address, port = _meeting_point(source, row, size, local_size)
    return ProcessEnv(
        rank=rank,
        world_size=size,
        local_rank=rank % local_size if local_rank is None else local_rank,
        local_world_size=local_size,
        node_rank=rank // local_size if node_rank is None else node_rank,
        num_nodes=nodes or -(-size // local_size),
        master_addr=address,
        master_port=port,
        launched=True,
    )


def _meeting_point(
    source: Mapping[str, str], row: tuple[str | None, ...], size: int, local_size: int
) -> tuple[str | None, int | None]:
    address = source.get("MASTER_ADDR") or None
    port = _number(source, "MASTER_PORT")
    if address is None and size == local_size:
        address = "127.0.0.1"
    if row[0] == "SLURM_PROCID":
        address = address or _first_host(source.get("SLURM_STEP_NODELIST", ""))
        if port is None:  # every task computes the same port, and two jobs on a host rarely meet
            port = 20000 + (_number(source, "SLURM_JOB_ID") or 0) % 10000
    return address, DEFAULT_PORT if port is None else port


def _number(source: Mapping[str, str], name: str | None) -> int | None:
    text = source.get(name) if name else None
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, which is no whole number. Unset it or correct it.") from None


def _slurm_tasks_here(source: Mapping[str, str], node: int) -> int | None:
    """Tasks on this node out of Slurm's run-length list, such as ``2(x3),1``."""
    text = source.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        if not count.isdigit():
            return None
        counts.extend([int(count)] * (int(times.rstrip(")")) if times else 1))
    return counts[node] if node < len(counts) else None


def _first_host(nodes: str) -> str | None:
    """The first host of Slurm's compact list: ``gpu[03-05,9]-x,login`` gives ``gpu03-x``."""
    if not nodes:
        return None
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return nodes.split(",")[0]
    inside, _, tail = rest.partition("]")
    return head + inside.split(",")[0].split("-")[0] + tail.split(",")[0]
