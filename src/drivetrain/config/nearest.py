"""The nearest known name, for messages about misspelt ones."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with the best match of ``name`` among ``known``, or the empty text.

    A known name that ``name`` begins counts as the best match, since abbreviations are refused.
    """
    from difflib import get_close_matches

    known = list(known)
    found = [one for one in known if len(name) > 2 and one.startswith(name)]
    found = found or get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {found[0]!r}?" if found else ""
