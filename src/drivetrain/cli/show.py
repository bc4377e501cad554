"""The table of ``--show-config``: every option, its value, and who set it."""

from __future__ import annotations

from drivetrain.config.options import OPTIONS, SECRETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from drivetrain.config.resolve import Settings


def table(settings: Settings) -> str:
    """One line an option: name, value, source. Secrets are not shown."""
    rows = []
    for one in OPTIONS:
        rows.append((one.name, _shown(one.name, settings[one.name]), settings.source(one.name)))
    name_width = max(len(row[0]) for row in rows)
    value_width = min(40, max(len(row[1]) for row in rows))
    return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {source}" for name, value, source in rows)


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ",".join(_shown(name, item) for item in value)
    return "***" if name in SECRETS else str(value).lower() if isinstance(value, bool) else str(value)
