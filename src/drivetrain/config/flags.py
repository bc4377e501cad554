"""The command line, derived from the option table: a quick reader for plain lines, and argparse for help and errors."""

from __future__ import annotations

from drivetrain.config.option import Option
from drivetrain.config.options import BY_NAME, OPTIONS, SHOWN_WITH
from drivetrain.config.resolve import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from typing import Any

PLACEHOLDER = "training_script"


class CommandLine:
    """A read command line: settings by option name, the script (None if absent) and the script's own arguments."""

    __slots__ = ("values", "script", "script_args")

    def __init__(self, values: dict[str, Setting], script: str | None, script_args: list[str]) -> None:
        self.values = values
        self.script = script
        self.script_args = script_args

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommandLine) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CommandLine({self.values!r}, {self.script!r}, {self.script_args!r})"


def spellings(one: Option) -> list[str]:
    """The long flags that mean this option: with underscores, and with dashes."""
    if one.flag is None:
        return []
    dashed = "--" + one.flag[2:].replace("_", "-")
    return [one.flag] if dashed == one.flag else [one.flag, dashed]


def off_spellings(one: Option) -> list[str]:
    """The flags that switch a switch off, such as ``--no_cpu``; none for options with values."""
    if one.flag is None or one.kind != "flag":
        return []
    return [f"--no_{one.flag[2:]}", "--no-" + one.flag[2:].replace("_", "-")]


def quick_read(argv: Sequence[str]) -> CommandLine | None:
    """Read a plain, right command line without argparse; None means "ask argparse", and says nothing about why.

    Plain: known long flags in one spelling, ``--flag value`` or ``--flag=value`` with a right value that does not
    begin with a dash, ``-m``, ``-q``, then a script.
    """
    table = _quick_table()
    values: dict[str, Setting] = {}
    position, end = 0, len(argv)
    while position < end:
        token = argv[position]
        if not token.startswith("-"):
            return CommandLine(values, token, list(argv[position + 1 :])) if token else None
        name, equals, text = token.partition("=")
        one = table.get(name)
        if one is None:
            return None
        if one.kind == "flag":
            if equals:
                return None
            values[one.name] = Setting(True, name)
        else:
            if not equals:
                position += 1
                text = argv[position] if position < end else ""
            if not text or text.startswith("-") or not _take(one, text, name, values):
                return None
        position += 1
    return CommandLine(values, None, []) if end else None


def read(argv: Sequence[str], prog: str) -> CommandLine:
    """Read a command line; on a wrong one, prints the reason and the nearest flag and exits with code 2.

    ``--help`` prints the help and exits with code 0.
    """
    found = quick_read(argv)
    return read_with_argparse(argv, prog) if found is None else found


def read_with_argparse(argv: Sequence[str], prog: str) -> CommandLine:
    """As `read`, always through argparse."""
    flags, script, script_args = split(argv)
    parser = build_parser(prog, shown=_selected(flags))
    namespace, extra = parser.parse_known_args([*flags, "--", PLACEHOLDER])
    if extra:
        from drivetrain.config.nearest import nearest

        wrong = extra[0].partition("=")[0]
        parser.error(f"unknown flag {wrong}.{nearest(wrong, _all_spellings())}")
    values = {name: value for name, value in vars(namespace).items() if isinstance(value, Setting) and name in BY_NAME}
    return CommandLine(values, script, script_args)


def split(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Cut a command line into our flags, the script, and everything after it, which belongs to the script."""
    long = {spelling: one for one in OPTIONS for spelling in spellings(one)}
    short = {one.short[1]: one for one in OPTIONS if one.short}
    position = 0
    while position < len(argv):
        token = argv[position]
        if token == "--":
            rest = list(argv[position + 1 :])
            return list(argv[:position]), rest[0] if rest else None, rest[1:]
        if not token.startswith("-") or token == "-":
            return list(argv[:position]), token, list(argv[position + 1 :])
        position += 1 + _takes_next(token, long, short)
    return list(argv), None, []


def build_parser(
    prog: str, shown: Iterable[str] = (), parser: argparse.ArgumentParser | None = None
) -> argparse.ArgumentParser:
    """The argparse parser of ``launch``, made from the option table; values arrive as `Setting`.

    Args:
        prog: command in the usage line.
        shown: names of options on the line, which decide what groups the help shows.
        parser: parser to add to, instead of a new one.
    """
    import argparse

    if parser is None:
        parser = argparse.ArgumentParser(
            prog=prog,
            usage=f"{prog} [options] training_script ...",
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            description="Start a training script on one or more processes.",
            epilog="Flags may be written with - or _. A switch --x is turned off by --no_x. Everything after the "
            "script belongs to the script. Flags of one backend are shown when its own flag is given as well: "
            "--multi_gpu, --use_fsdp, --use_deepspeed, --use_megatron_lm, --use_parallelism_config, --tpu, "
            "--fp8_backend.",
        )
    parser.add_argument("training_script", help="Script to run, or a module with -m.")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Arguments of the script.")
    shown = set(shown)
    groups: dict[str, Any] = {"options": parser}
    for one in OPTIONS:
        if one.flag is None:
            continue
        hidden = one.group in SHOWN_WITH and SHOWN_WITH[one.group] not in shown
        if one.group not in groups:
            groups[one.group] = parser.add_argument_group(None if hidden else one.group)
        _add(groups[one.group], one, argparse.SUPPRESS if hidden else _help(one))
    return parser


def _quick_table() -> dict[str, Option]:
    table: dict[str, Option] = {}
    for one in OPTIONS:
        if one.flag is not None:
            table[one.flag] = one
            table["--" + one.flag[2:].replace("_", "-")] = one
            if one.short is not None and one.kind == "flag":
                table[one.short] = one
    return table


def _take(one: Option, text: str, name: str, values: dict[str, Setting]) -> bool:
    from drivetrain.core.errors import ConfigError

    try:
        value = _convert(one, text, name)
    except ConfigError:
        return False
    if one.kind == "list" and one.name in values:
        value = values[one.name].value + value
    values[one.name] = Setting(value, name)
    return True


def _convert(one: Option, text: str, name: str) -> Any:
    return [text] if one.kind == "list" else one.from_text(text, name)


def _takes_next(token: str, long: dict[str, Option], short: dict[str, Option]) -> int:
    """1 if the token after this flag is its value, else 0."""
    if token.startswith("--"):
        one = long.get(token)
        return int(one is not None and one.kind != "flag")
    for place, letter in enumerate(token[1:], start=2):
        one = short.get(letter)
        if one is not None and one.kind != "flag":
            return int(place == len(token))
    return 0


def _selected(flags: Sequence[str]) -> list[str]:
    """Names of the options that stand among these flags, right or wrong."""
    by_spelling = {spelling: one.name for one in OPTIONS for spelling in spellings(one)}
    names = (token.partition("=")[0] for token in flags)
    return [by_spelling[name] for name in names if name in by_spelling]


def _all_spellings() -> list[str]:
    return [spelling for one in OPTIONS for spelling in (*spellings(one)[:1], *off_spellings(one)[:1])]


def _help(one: Option) -> str:
    text = one.help.replace("%", "%%")
    if one.kind != "flag" and one.default not in (None, ""):
        text += f" Default: {str(one.default).lower() if isinstance(one.default, bool) else one.default}."
    return text


def _add(group: Any, one: Option, text: str) -> None:
    import argparse

    class Store(argparse.Action):
        """Keep the value with the flag as it was written, as the source that `--show-config` names."""

        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            name = option_string or one.flag or one.name
            if one.kind == "flag":
                setattr(namespace, one.name, Setting(name not in off_spellings(one), name))
                return
            value = _checked(one, values, name)
            before = getattr(namespace, one.name, None)
            if one.kind == "list" and isinstance(before, Setting):
                value = before.value + value
            setattr(namespace, one.name, Setting(value, name))

    nargs = 0 if one.kind == "flag" else None
    metavar = "{" + ",".join(one.choices) + "}" if one.choices else None if nargs == 0 else one.kind.upper()
    flag, *dashed = spellings(one)
    names = [one.short, flag] if one.short else [flag]
    group.add_argument(*names, action=Store, dest=one.name, nargs=nargs, metavar=metavar, help=text)
    for name in (*dashed, *off_spellings(one)):  # apart from the first, so that the help shows one spelling
        group.add_argument(name, action=Store, dest=one.name, nargs=nargs, help=argparse.SUPPRESS)


def _checked(one: Option, text: str, name: str) -> Any:
    import argparse

    from drivetrain.core.errors import ConfigError

    try:
        return _convert(one, text, name)
    except ConfigError as error:
        raise argparse.ArgumentError(None, str(error)) from None
