"""The questionnaire of ``config``: which options to ask for, given the answers so far. Enter keeps the default."""

from __future__ import annotations

import sys

from drivetrain.cli.config import basic, put
from drivetrain.config.files import layer_of
from drivetrain.config.option import Option
from drivetrain.config.options import BY_NAME, OPTIONS
from drivetrain.config.options_backends import DEEPSPEED, FP8, FSDP, MEGATRON, MESH
from drivetrain.core.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Name of an option and when it is asked for, given the answers so far.
PLAN: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ("distributed_type", lambda said: True),
    ("use_cpu", lambda said: said["distributed_type"] not in ("MULTI_CPU", "XLA")),
    ("num_machines", lambda said: said["distributed_type"] != "NO"),
    ("machine_rank", lambda said: said.get("num_machines", 1) > 1),
    ("main_process_ip", lambda said: said.get("num_machines", 1) > 1),
    ("main_process_port", lambda said: said.get("num_machines", 1) > 1),
    ("same_network", lambda said: said.get("num_machines", 1) > 1),
    ("rdzv_backend", lambda said: said.get("num_machines", 1) > 1),
    ("num_processes", lambda said: True),
    ("gpu_ids", lambda said: said["distributed_type"] == "MULTI_GPU"),
    ("mixed_precision", lambda said: True),
    ("gradient_accumulation_steps", lambda said: True),
    ("dynamo_backend", lambda said: True),
    ("debug", lambda said: True),
)
# Groups whose options are asked for as well, one by one.
GROUPS: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    (FSDP, lambda said: said["distributed_type"] == "FSDP"),
    (DEEPSPEED, lambda said: said["distributed_type"] == "DEEPSPEED"),
    (MEGATRON, lambda said: said["distributed_type"] == "MEGATRON_LM"),
    (FP8, lambda said: said["mixed_precision"] == "fp8"),
    (MESH, lambda said: said["distributed_type"] == "FSDP" and said.get("fsdp_version") == "2"),
)


def ask(before: dict[str, Any]) -> dict[str, Any]:
    """Ask, and return the config file's content. Defaults are the old file's values, else this machine's.

    Raises:
        ConfigError: the input ended before the last question.
    """
    document = dict(before) if before else basic("no")
    known = {name: one.value for name, one in layer_of(document, "the present file").items()}
    said: dict[str, Any] = {}
    print("Press Enter to keep the value in brackets.")
    for name, wanted in PLAN:
        one = BY_NAME["cpu" if name == "use_cpu" else name]
        if wanted(said):
            said[name] = _answer(one, known.get(one.name, one.default))
            put(document, one, said[name])
    for group, wanted in GROUPS:
        if wanted(said):
            for one in OPTIONS:
                if one.group == group and one.flag is not None:
                    said[one.name] = _answer(one, known.get(one.name, one.default))
                    if said[one.name] != one.default or one.name in known:
                        put(document, one, said[one.name])
    return document


def _answer(one: Option, default: Any) -> Any:
    """Ask until the answer can be read; an empty one is the default."""
    shown = "" if default is None else f" [{one.to_text(default)}]"
    allowed = f" ({', '.join(one.choices)})" if one.choices else ""
    while True:
        try:
            text = input(f"{one.help}{allowed} {one.name}{shown}: ").strip()
        except EOFError:
            raise ConfigError(
                f"the input ended at the question for {one.name}. To write a file without questions, use "
                "`config default` or `config --set KEY=VALUE`."
            ) from None
        if not text:
            return default
        try:
            return one.from_text(text, one.name)
        except ConfigError as error:
            print(error, file=sys.stderr)
