"""The launcher's settings: command line over environment over file over default, with rival switches kept apart."""

from __future__ import annotations

from drivetrain.config import environ as env
from drivetrain.config.resolve import Setting, Settings, environment_layer, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# A stronger source that chooses one of these overrules a weaker one that chose another.
PARADIGMS = ("multi_gpu", "tpu", "tpu_use_cluster", "use_deepspeed", "use_fsdp", "use_megatron_lm")
# `cpu` goes with every paradigm but those that name a device themselves.
DEVICES = ("multi_gpu", "tpu", "tpu_use_cluster")


def gather(cli: Mapping[str, Setting], environ: Mapping[str, str] | None = None) -> tuple[Settings, str | None]:
    """Resolve what ``launch`` was told; also the config file that was read, or None.

    Raises:
        ConfigError: a variable or the file holds something wrong, or a named file does not exist.
    """
    source = env.snapshot() if environ is None else environ
    variables = environment_layer(source)
    path = _file(cli, variables, source)
    file: dict[str, Setting] = {}
    if path is not None:
        from drivetrain.config.files import read_file

        file = read_file(path)
    layers = [dict(cli), variables, file]
    for position, stronger in enumerate(layers):
        for weaker in layers[position + 1 :]:
            _overrule(stronger, weaker)
    return resolve(cli=layers[0], environ=layers[1], file=layers[2]), path


def _file(cli: Mapping[str, Setting], variables: Mapping[str, Setting], source: Mapping[str, str]) -> str | None:
    from drivetrain.config.files import chosen_file

    for layer in (cli, variables):
        named = [layer[name].value if name in layer else None for name in ("config_file", "profile")]
        if any(named):
            return chosen_file(named[0], named[1], source)
    return chosen_file(None, None, source)


def _overrule(stronger: Mapping[str, Setting], weaker: dict[str, Setting]) -> None:
    """Switch off in the weaker layer what the stronger one has decided otherwise."""
    for rivals, trigger in ((PARADIGMS, PARADIGMS), (DEVICES, ("cpu",)), (("cpu",), DEVICES)):
        chosen = next((stronger[name] for name in trigger if name in stronger and stronger[name].value), None)
        if chosen is None:
            continue
        for name in rivals:
            if name in weaker and weaker[name].value and name not in stronger:
                weaker[name] = Setting(False, f"{chosen.source} (instead of {weaker[name].source})")
