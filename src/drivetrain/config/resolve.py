"""Which value each option has, and who said so: code, then command line, then environment, then file, then default."""

from __future__ import annotations

from drivetrain.config import environ as env
from drivetrain.config.option import Option
from drivetrain.config.options import BY_NAME, LAUNCHER_ONLY, OPTIONS, option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

HANDOVER = "DRIVETRAIN_CONFIG"
"""Variable in which the launcher hands its settings to the ranks, as JSON."""

DEFAULT_SOURCE = "default"


class Setting:
    """A value, where it came from in words, and whether that is a config file."""

    __slots__ = ("value", "source", "in_file")

    def __init__(self, value: Any, source: str, in_file: bool = False) -> None:
        self.value = value
        self.source = source
        self.in_file = in_file

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self.value, self.source) == (other.value, other.source)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Setting({self.value!r}, {self.source!r})"


class Settings:
    """Every option's value by name; read only."""

    __slots__ = ("_found",)

    def __init__(self, found: dict[str, Setting]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Any:
        found = self._found.get(name)
        return option(name).default if found is None else found.value

    def __iter__(self) -> Iterator[str]:
        return iter(BY_NAME)

    def __len__(self) -> int:
        return len(BY_NAME)

    def __contains__(self, name: object) -> bool:
        return name in BY_NAME

    def source(self, name: str) -> str:
        """Who set the option: a flag, a variable, a file and its key, or "default"."""
        one = option(name)
        return self._found[one.name].source if one.name in self._found else DEFAULT_SOURCE

    def explicit(self, name: str) -> bool:
        """Whether anything set the option, be it to its default."""
        return name in self._found

    def in_file(self, name: str) -> bool:
        """Whether the value came from a config file."""
        found = self._found.get(name)
        return found is not None and found.in_file

    def changed(self) -> dict[str, Any]:
        """Name and value of every option that differs from its default."""
        return {name: found.value for name, found in self._found.items() if found.value != BY_NAME[name].default}

    def with_values(self, values: Mapping[str, Any], source: str) -> Settings:
        """A copy in which these options have these values."""
        return Settings(
            {**self._found, **{option(name).name: Setting(value, source) for name, value in values.items()}}
        )

    def handover(self) -> str:
        """JSON of what the ranks must know: every set option that means something to them."""
        return _json({name: one.value for name, one in self._found.items() if name not in LAUNCHER_ONLY})


def resolve(
    code: Mapping[str, Any] | None = None,
    cli: Mapping[str, Any] | None = None,
    environ: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge four layers of option name to value (or to `Setting`), strongest first; a value of None is "not given".

    Raises:
        ConfigError: an unknown option, or a value it cannot have.
    """
    found: dict[str, Setting] = {}
    for layer, source in ((file, "file"), (environ, "environment"), (cli, "command line"), (code, "argument")):
        for name, value in (layer or {}).items():
            one = option(name)
            if isinstance(value, Setting):
                setting = value
            else:
                setting = Setting(one.from_value(value, f"{name} ({source})"), source)
            if setting.value is not None:
                found[name] = setting
    return Settings(found)


def environment_layer(environ: Mapping[str, str] | None = None, *, contract_names: bool = True) -> dict[str, Setting]:
    """The options that variables set: the contract's name first, then ours. An empty variable counts as not set.

    Raises:
        ConfigError: naming the variable, its text, and what is allowed.
    """
    source = env.snapshot() if environ is None else environ
    found: dict[str, Setting] = {}
    for one in OPTIONS:
        name = one.own_env
        text = source.get(name)
        if contract_names and one.env is not None:
            known = one.env if isinstance(one.env, str) else None
            if known is None:
                _read_several(one, source, found)
            elif source.get(known):
                name, text = known, source[known]
        if text:
            found[one.name] = Setting(one.from_text(text, name), name)
    return found


def in_process(code: Mapping[str, Any], *, contract_names: bool) -> Settings:
    """What holds inside a rank: code, contract's variable (if asked for), our variable, the launcher's JSON, default.

    Raises:
        ConfigError: an argument, a variable or the JSON holds a value that its option cannot have.
    """
    return resolve(
        code=code,
        environ=environment_layer(contract_names=contract_names),
        file=handed_over(env.read(HANDOVER)),
    )


def handed_over(text: str | None) -> dict[str, Setting]:
    """The layer in the launcher's JSON.

    Raises:
        ConfigError: it is not the JSON of an object, or names an unknown option.
    """
    if not text:
        return {}
    import json

    from drivetrain.core.errors import ConfigError

    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{HANDOVER} is not JSON: {error}. The launcher writes it; unset it or correct it.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{HANDOVER} must hold a JSON object, but holds {values!r}.")
    return {
        name: Setting(option(name).from_value(value, f"{name} in {HANDOVER}"), "launcher")
        for name, value in values.items()
    }


def _read_several(one: Option, source: Mapping[str, str], found: dict[str, Setting]) -> None:
    assert isinstance(one.env, tuple)
    names = one.env
    if not any(source.get(name) for name in names):
        return
    values = tuple(
        env.parse_flag(source[name], name) if source.get(name) else default
        for name, default in zip(names, one.default, strict=True)  # type: ignore[call-overload]
    )
    found[one.name] = Setting(values, names[0])


def _json(values: Mapping[str, Any]) -> str:
    """JSON of a flat mapping, by hand: importing `json` would cost half of what starting Python does."""
    return "{" + ", ".join(f'"{name}": {_json_value(value)}' for name, value in values.items()) + "}"


def _json_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) or isinstance(value, float) and abs(value) < float("inf"):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_json_value(item) for item in value) + "]"
    if isinstance(value, str) and value.isascii() and value.isprintable() and not ('"' in value or "\\" in value):
        return f'"{value}"'
    from json import dumps

    return dumps(value)
