"""Launching from inside a running Python, such as a notebook: a function on several processes, and its results back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from drivetrain.config import environ
from drivetrain.config.options import option
from drivetrain.core.errors import ConfigError, LaunchError, UsageError
from drivetrain.launch import devices, ports
from drivetrain.launch.cuda_start import FIRST_CALL, check_not_started
from drivetrain.launch.handover import physical_cores

FIRST_CALL.watch()


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int = "29500",
    master_addr: str = ports.LOOPBACK,
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: dict[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> list[Any]:
    """Run ``function(*args)`` on ``num_processes`` processes of this machine and return what each returned, by rank.

    The processes are forks of this one, so the function may be defined in the notebook and see its variables. Each
    computes with one CPU thread where torch was imported before the call: torch's threads do not survive a fork.

    Args:
        num_processes: processes on this machine; None for one for each accelerator. One runs in this process.
        mixed_precision: becomes the default of ``Accelerator(mixed_precision=...)`` inside; "no" leaves it as it is.
        use_port: port of rank 0. On one machine, a taken one is replaced.
        master_addr: address of machine 0.
        node_rank: number of this machine.
        num_nodes: machines; call this on each of them.
        rdzv_backend: "static" only.
        rdzv_endpoint: ``address:port`` in place of the two above.
        rdzv_conf: of no effect with static addresses.
        rdzv_id: of no effect with static addresses.
        max_restarts: how often all processes are started anew after one has failed (one machine only).
        monitor_interval: of no effect: ends of processes are seen at once.
        log_line_prefix_template: None only.

    Raises:
        ConfigError: an argument cannot be right.
        LaunchError: a process failed (the message holds the first one's traceback), or CUDA is initialised already.
        UsageError: this process is itself part of a process group.
    """
    _check_arguments(mixed_precision, node_rank, num_nodes, rdzv_backend, log_line_prefix_template)
    found = devices.visible(environ.snapshot())
    number = num_processes if num_processes is not None else found.count
    if number < 1:
        raise ConfigError(
            "num_processes is not given, and no accelerator is visible. Give it, such as num_processes=2."
        )
    if found.count and number > found.count:
        raise ConfigError(f"num_processes={number}, but only {found.count} accelerator(s) are visible. Lower it.")
    shared = _precision(mixed_precision)
    if number * num_nodes == 1:
        print(f"Launching training on one {found.kind.upper() or 'CPU'}.")
        with environ.patched(**shared):
            return [function(*args)]
    _check_process(found)
    if rdzv_endpoint:
        master_addr, _, use_port = rdzv_endpoint.rpartition(":")
    if not found.count:
        shared |= _on_cpu()
    print(f"Launching training on {number} {found.kind.upper() or 'CPU'} processes.")
    attempts = max_restarts + 1 if num_nodes == 1 else 1
    for attempt in range(attempts):
        port = _port(int(use_port), num_nodes)
        variables = [_place(rank, number, node_rank, num_nodes, master_addr, port) | shared for rank in range(number)]
        try:
            return _run(function, args, variables)
        except LaunchError:
            if attempt + 1 == attempts:
                raise
    raise AssertionError("unreachable")


def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> list[Any]:
    """Run ``function(*args)`` on several CPU processes, for testing; returns what each returned, by rank.

    The processes are forks of this one and use one CPU thread each.

    Raises:
        ConfigError: ``num_processes`` is below 1.
        LaunchError: a process failed; the message holds the first one's traceback.
    """
    if num_processes < 1:
        raise ConfigError(f"num_processes={num_processes}, but at least 1 process is needed.")
    port = ports.free_port()
    shared = _on_cpu()
    variables = [_place(rank, num_processes, 0, 1, ports.LOOPBACK, port) | shared for rank in range(num_processes)]
    return _run(function, args, variables)


def _run(function: Callable[..., Any], args: Sequence[Any], variables: list[dict[str, str]]) -> list[Any]:
    from drivetrain.launch.children import run_in_forks

    if not environ.read("OMP_NUM_THREADS"):
        threads = {"OMP_NUM_THREADS": str(max(1, physical_cores() // len(variables)))}
        variables = [one | threads for one in variables]
    return run_in_forks(function, args, variables)


def _check_arguments(
    mixed_precision: str, node_rank: int, num_nodes: int, rdzv_backend: str, template: str | None
) -> None:
    option("mixed_precision").from_text(str(getattr(mixed_precision, "value", mixed_precision)), "mixed_precision")
    if not 0 <= node_rank < num_nodes:
        raise ConfigError(f"node_rank={node_rank} does not fit into num_nodes={num_nodes}. It counts from 0.")
    if rdzv_backend != "static":
        raise ConfigError(
            f"rdzv_backend={rdzv_backend!r} is not possible from inside a process. Use 'static', or the launch command."
        )
    if template is not None:
        raise ConfigError("log_line_prefix_template has no use here: lines are passed on as they are. Leave it out.")


def _check_process(found: devices.Devices) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        raise UsageError(
            "this process is part of a process group already. Create the Accelerator inside the launched function, not "
            "before, and restart the notebook."
        )
    check_not_started()
    if found.kind == "cuda" and "bitsandbytes" in sys.modules:
        raise LaunchError("bitsandbytes initialises CUDA when imported. Import it inside the launched function.")


def _precision(mixed_precision: str) -> dict[str, str]:
    word = str(getattr(mixed_precision, "value", mixed_precision)).lower()
    if word == "no":
        return {}
    one = option("mixed_precision")
    return {str(one.env): word, one.own_env: word}


def _on_cpu() -> dict[str, str]:
    one = option("cpu")
    interface = ports.loopback_interface()
    shared = {str(one.env): "true", one.own_env: "true"}
    if interface is not None and not environ.read("GLOO_SOCKET_IFNAME"):
        shared["GLOO_SOCKET_IFNAME"] = interface
    return shared


def _port(wanted: int, num_nodes: int) -> int:
    return wanted if wanted and (num_nodes > 1 or ports.is_free(wanted)) else ports.free_port()


def _place(local_rank: int, local: int, node: int, nodes: int, address: str, port: int) -> dict[str, str]:
    return {
        "RANK": str(node * local + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(nodes * local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "FORK_LAUNCHED": "1",
    }
