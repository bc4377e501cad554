"""Names that this version only knows by name: they can be imported and patched, and say so when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

from drivetrain.core.errors import UsageError


class NotAvailable(UsageError, NotImplementedError):
    """Something was used that belongs to a part which this version does not have."""


class Placeholder:
    """Base of the classes that stand for a later one: `isinstance` against them is False, and making one raises."""

    _message: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotAvailable(type(self)._message)


def placeholder(module: str, name: str, feature: str) -> Any:
    """A class (capital letter) or a function called ``module.name`` that raises when it is made or called."""
    message = text(f"{module}.{name}", feature)
    if name[0].isupper():
        return type(name, (Placeholder,), {"__module__": module, "__doc__": message, "_message": message})

    def later(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotAvailable(message)

    later.__module__, later.__name__, later.__qualname__, later.__doc__ = module, name, name, message
    return later


def text(what: str, feature: str) -> str:
    """The sentence that tells why ``what`` does not work."""
    return (
        f"{what} is not available in this version of drivetrain: it belongs to {feature}, which is not there yet. "
        "Training on a single device and data parallel work; docs/support.md lists what does."
    )
