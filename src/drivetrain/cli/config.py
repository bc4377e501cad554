"""``config``: write a config file by questions, by ``--set``, or with defaults; rewrite an old one."""

from __future__ import annotations

import os

from drivetrain.config import environ as env
from drivetrain.config import files
from drivetrain.config.nearest import nearest
from drivetrain.config.option import Option
from drivetrain.config.options import BY_NAME, GENERAL
from drivetrain.core.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any


def command(argv: Sequence[str], prog: str) -> int:
    """Run ``config``, ``config default`` or ``config update``.

    Raises:
        ConfigError: a key or a value is wrong, or the file to update does not exist.
    """
    actions = {"default": _default, "update": _update}
    if argv and argv[0] in actions:
        return actions[argv[0]](argv[1:], f"{prog} {argv[0]}")
    parser = _parser(prog, "Write a config file: by questions, or without any by --set.")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", default=[], help="Set one key; may be repeated.")
    parser.epilog = "Also: `config default` writes a file without asking, `config update` rewrites an old file."
    line = parser.parse_args(argv)
    path = _path(line)
    if line.set:
        document = files.read_document(path) if os.path.isfile(path) else basic("no")
        for assignment in line.set:
            assign(document, assignment)
    else:
        from drivetrain.cli.questions import ask

        before = files.read_document(path) if os.path.isfile(path) else {}
        document = ask(before)
    files.layer_of(document, path)
    return _written(document, path)


def basic(mixed_precision: str) -> dict[str, Any]:
    """The config file for this machine without any wishes."""
    from drivetrain.launch.devices import visible

    devices = visible(env.snapshot())
    kinds = {"cuda": "GPU", "rocm": "GPU"}
    several = f"MULTI_{kinds.get(devices.kind, devices.kind.upper())}"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": several if devices.count > 1 else "NO",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": mixed_precision,
        "num_machines": 1,
        "num_processes": max(1, devices.count),
        "rdzv_backend": "static",
        "same_network": False,
        "use_cpu": devices.count == 0,
    }


def assign(document: dict[str, Any], assignment: str) -> None:
    """Put ``key=value`` into the document; the key is dotted as in the file, or an option's name.

    Raises:
        ConfigError: no equals sign, an unknown key, or a value that the option cannot have.
    """
    name, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError(f"--set takes KEY=VALUE, but got {assignment!r}.")
    one = files.key_owner(tuple(name.split("."))) or BY_NAME.get(name)
    if one is None:
        raise ConfigError(f"there is no key {name!r}.{nearest(name, [*files.known_keys(), *BY_NAME])}")
    if not one.key:
        chosen = "given on the command line" if one.group == GENERAL else "chosen by the key distributed_type"
        raise ConfigError(f"{name} has no key in a config file: it is {chosen}.")
    put(document, one, None if text.lower() in ("", "null", "none") else one.from_text(text, f"--set {name}"))


def put(document: dict[str, Any], one: Option, value: Any) -> None:
    """Store a value at the option's key; None removes the key."""
    target = document
    if len(one.key) == 2:
        section = document.get(one.key[0])
        target = dict(section) if isinstance(section, dict) else {}
        document[one.key[0]] = target
    for old in [key for key in target if files.key_owner((*one.key[:-1], key)) is one]:
        del target[old]
    if value is not None:
        target[one.key[-1]] = list(value) if isinstance(value, tuple) else value


def _default(argv: Sequence[str], prog: str) -> int:
    parser = _parser(prog, "Write a config file for this machine without asking.")
    choices = BY_NAME["mixed_precision"].choices
    parser.add_argument("--mixed_precision", choices=choices, default="no", help="Precision of the forward pass.")
    line = parser.parse_args(argv)
    path = _path(line)
    if os.path.exists(path):
        print(f"{path} exists already and is left as it is. Delete it first, or change it with: config --set KEY=VALUE")
        return 0
    return _written(basic(line.mixed_precision), path)


def _update(argv: Sequence[str], prog: str) -> int:
    line = _parser(prog, "Rewrite a config file with today's keys.").parse_args(argv)
    path = _path(line)
    if not os.path.isfile(path):
        raise ConfigError(f"there is no config file {path} to update.")
    old = files.read_document(path)
    layer = files.layer_of(old, path)
    document: dict[str, Any] = {"distributed_type": "NO"}
    for name, setting in layer.items():
        if BY_NAME[name].key:
            put(document, BY_NAME[name], setting.value)
    return _written(document, path)


def _written(document: dict[str, Any], path: str) -> int:
    document = {key: value for key, value in document.items() if value is not None and value != {}}
    try:
        files.write_document(document, path)
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be written: {error.strerror}.") from None
    print(f"config file written: {path}")
    return 0


def _parser(prog: str, text: str) -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(prog=prog, description=text, allow_abbrev=False)
    parser.add_argument("--config_file", "--config-file", metavar="PATH", help="File to write instead of the default.")
    parser.add_argument("--profile", metavar="NAME", help="Write the file NAME.yaml beside the default one.")
    return parser


def _path(line: argparse.Namespace) -> str:
    if line.config_file and line.profile:
        raise ConfigError("--config_file and --profile are both given. Give one of them.")
    if line.profile:
        return files.profile_file(line.profile)
    return os.path.expanduser(line.config_file) if line.config_file else files.default_config_file()
