"""What one option is, and how its value is read from text or from a config file. Light: the launcher imports it."""

from __future__ import annotations

from drivetrain.config.environ import parse_flag
from drivetrain.core.errors import ConfigError

KINDS = ("flag", "bool", "int", "float", "str", "choice", "list", "bools")
"""`flag` is a switch without a value on the command line, `bool` takes a truth word, `list` may be repeated,
`bools` is a comma list of truth words."""


class Option:
    """One setting: its name, type, default, and its spelling on every path that can set it.

    Attributes:
        name: key in `Settings`, and attribute of the parsed command line.
        kind: one of `KINDS`.
        default: value when nothing sets it.
        help: one sentence.
        choices: allowed words for kind "choice".
        env: the environment contract's variable (a tuple of them for kind "bools"), or None.
        key: path in the config file.
        flag: long flag with underscores, or None for settings of the file only.
        short: one-letter flag or None.
        group: heading in the help.
        spell: how a value is written to `env`: "lower", "upper", "True" (Python's words) or "1".
    """

    __slots__ = ("name", "kind", "default", "help", "choices", "env", "key", "flag", "short", "group", "spell")

    def __init__(
        self,
        name: str,
        kind: str,
        default: object,
        help: str,  # noqa: A002 - the same word as in argparse
        *,
        group: str,
        choices: tuple[str, ...] = (),
        env: str | tuple[str, ...] | None = None,
        key: tuple[str, ...] | None = None,
        flag: str | None = "",
        short: str | None = None,
        spell: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.help = help
        self.choices = choices
        self.env = env
        self.key = ("drivetrain", name) if key is None else key
        self.flag = f"--{name}" if flag == "" else flag
        self.short = short
        self.group = group
        self.spell = spell

    def __repr__(self) -> str:
        return f"Option({self.name!r}, {self.kind!r}, default={self.default!r})"

    @property
    def own_env(self) -> str:
        """Drivetrain's variable for this option."""
        return "DRIVETRAIN_" + self.name.upper()

    def from_text(self, text: str, where: str) -> object:
        """The value that ``text`` (a flag's argument or a variable) stands for.

        Raises:
            ConfigError: naming ``where``, the text and what is allowed.
        """
        if self.kind in ("flag", "bool"):
            return parse_flag(text, where)
        if self.kind == "int":
            return self._number(int, text, where, "whole number")
        if self.kind == "float":
            return self._number(float, text, where, "number")
        if self.kind == "choice":
            return self._choice(text, where)
        if self.kind == "list":
            return [part for part in text.split(",") if part]
        if self.kind == "bools":
            return tuple(parse_flag(part, where) for part in text.strip("()[] ").split(","))
        return text

    def from_value(self, value: object, where: str) -> object:
        """The option's value out of a Python or YAML value: text is read as by `from_text`, right types pass.

        Raises:
            ConfigError: naming ``where``, the value and what is allowed.
        """
        value = getattr(value, "value", value)  # an enum member stands for its value
        if value is None or value == self.default and type(value) is type(self.default):
            return value
        if isinstance(value, (list, tuple)):
            return self._items(list(value), where)
        if isinstance(value, str):
            return self.from_text(value, where)
        if isinstance(value, bool):
            return value if self.kind in ("flag", "bool") else self.from_text(str(value).lower(), where)
        if isinstance(value, float) and self.kind == "int" and value.is_integer():
            return int(value)
        if isinstance(value, (int, float)):
            return self.from_text(str(value), where)
        raise ConfigError(f"{where} is {value!r}, but {self.describe()} is expected.")

    def to_text(self, value: object) -> str:
        """How ``value`` is written to the contract's variable."""
        if isinstance(value, bool):
            if self.spell == "True":
                return str(value)
            if self.spell == "1":
                return "1" if value else "0"
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return ",".join(self.to_text(item) for item in value)
        text = str(value)
        if self.spell == "upper":
            return text.upper()
        return text.lower() if self.spell == "lower" else text

    def describe(self) -> str:
        """What a value of this option looks like, for messages and docs."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        words = {
            "flag": "true or false",
            "bool": "true or false",
            "int": "a whole number",
            "float": "a number",
            "list": "a list of texts",
            "bools": "a comma list of true/false",
        }
        return words.get(self.kind, "a text")

    def _number(self, convert: type, text: str, where: str, noun: str) -> object:
        try:
            return convert(text)
        except ValueError:
            raise ConfigError(f"{where} is {text!r}, which is no {noun}.") from None

    def _choice(self, text: str, where: str) -> str:
        for choice in self.choices:
            if text.lower() == choice.lower():
                return choice
        raise ConfigError(f"{where} is {text!r}; choose {self.describe()}.")

    def _items(self, items: list, where: str) -> object:
        if self.kind == "list":
            return [str(item) for item in items]
        if self.kind == "bools":
            return tuple(item if isinstance(item, bool) else parse_flag(str(item), where) for item in items)
        if self.kind == "str":  # a list of ids or class names where the command line has a comma list
            return ",".join(str(item) for item in items)
        raise ConfigError(f"{where} is the list {items!r}, but {self.describe()} is expected.")
