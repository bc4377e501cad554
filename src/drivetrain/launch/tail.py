"""Find the traceback with which a process ended, in what it wrote to its standard error."""

from __future__ import annotations

import re

# torch's own hook puts "[rank1]: " before every line.
_PREFIX = r"(?:\[rank\d+\]: ?)?"
_START = re.compile(rf"^{_PREFIX}(?:  \+ Exception Group )?Traceback \(most recent call last\):", re.MULTILINE)
_CHAIN = re.compile(
    rf"{_PREFIX}(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):(?:\s|\[rank\d+\]:)*\Z"
)
_FRAME = re.compile(rf"^{_PREFIX}(?:[ |+]|$)")
# What a dying process says after its error: C++ logs, warnings, errors in destructors.
_NOISE = re.compile(r"^(?:\[[WEIF]\d{3,}|Exception ignored in|\S+:\d+: \w*Warning:|\s*warnings\.warn\()")
LINES = 20
"""Lines shown of a process that ended without a traceback."""


def last_words(text: str) -> tuple[str, int, bool]:
    """The last traceback in ``text`` with those it is chained to, or else the last lines.

    Returns the words, the position in ``text`` at which they start, and whether nothing comes after them.

    Lines that a dying process writes after its traceback, such as warnings of a library, are left out.
    """
    starts = list(_START.finditer(text))
    if not starts:
        lines = text.rstrip().splitlines(keepends=True)
        words = "".join(lines[-LINES:])
        return words, sum(map(len, lines)) - len(words), True
    place = len(starts) - 1
    while place > 0 and _CHAIN.search(text[starts[place - 1].end() : starts[place].start()].rstrip()):
        place -= 1
    begin, end = starts[place].start(), _end(text, starts[-1].start())
    return text[begin:end].rstrip(), begin, not text[end:].strip()


def _end(text: str, start: int) -> int:
    """Where the traceback that starts at ``start`` ends: before the first noise behind its last line."""
    position, seen_message = start, False
    for number, line in enumerate(text[start:].splitlines(keepends=True)):
        if number > 0 and not seen_message:
            seen_message = not _FRAME.match(line)
        elif seen_message and _NOISE.match(line):
            return position
        position += len(line)
    return len(text)
