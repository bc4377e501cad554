"""The page about options in the docs, made from the option table."""

from __future__ import annotations

from drivetrain.config.option import Option
from drivetrain.config.options import GENERAL, OPTIONS

HEADER = """# Options

Every option, on every path that can set it. Made from the table in the source: `python -m drivetrain.config.reference`.

What counts, strongest first: an argument in code, the command line, the environment, the config file, the default.
Flags may be written with `_` or `-`; a switch `--x` is turned off by `--no_x`. Each option also has a variable of our
own, `DRIVETRAIN_` and its name in capitals. In the config file, keys of the section `drivetrain` are ours; the others
are those of the established format, so existing files work as they are.
"""


def markdown(options: tuple[Option, ...] = OPTIONS) -> str:
    """The whole page: one table a group."""
    parts = [HEADER]
    for group in dict.fromkeys(one.group for one in options):
        parts.append(f"\n## {group[0].upper()}{group[1:]}\n\n")
        parts.append("| flag | value | default | config file | variable | meaning |\n|---|---|---|---|---|---|\n")
        parts.extend(_row(one) for one in options if one.group == group)
    return "".join(parts)


def _row(one: Option) -> str:
    flag = f"`{one.flag}`" + (f", `{one.short}`" if one.short else "") if one.flag else ""
    key = f"`{'.'.join(one.key)}`" if one.key else "" if one.group == GENERAL else "by `distributed_type`"
    names = [one.env] if isinstance(one.env, str) else list(one.env or [])
    variable = ", ".join(f"`{name}`" for name in names) or f"`{one.own_env}`"
    default = "" if one.default is None else f"`{one.to_text(one.default)}`"
    value = "switch" if one.kind == "flag" and one.flag else one.describe().removeprefix("a ").removeprefix("an ")
    return f"| {flag} | {value} | {default} | {key} | {variable} | {one.help} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
