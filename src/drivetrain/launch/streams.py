"""What ranks print: passed on as it comes, and the end of it remembered."""

from __future__ import annotations

import os
import select

KEPT = 256 * 1024
"""Bytes remembered of each rank's standard error."""


CHUNK = 65536
LONGEST = 1 << 20
"""Bytes that are held back at most while a line has no end."""
LINE_ENDS = (b"\n", b"\r")
SETTLE = 0.01
"""Seconds that the rest of a line is waited for."""
KEPT_CHUNKS = 4096
"""Writes of a rank of which the order among all writes is remembered."""


class Screen:
    """Counts what was written to the user, to know what came last."""

    def __init__(self) -> None:
        self.writes = 0


class Relay:
    """Passes on one stream of one rank.

    Attributes:
        reader: descriptor to wait on and read from.
        writer: descriptor that becomes the rank's stream, until `started`.
        tail: the last bytes, if they are to be kept.
    """

    def __init__(self, target: int, screen: Screen, *, keep: bool) -> None:
        self.reader, self.writer = _terminal(target) if os.isatty(target) else os.pipe()
        self.tail = bytearray()
        self.open = True
        self._passed = 0
        self._chunks: list[tuple[int, int]] = []  # bytes passed on before it, and its number among the screen's writes
        self._target, self._screen, self._keep = target, screen, keep

    def started(self) -> None:
        """Close our copy of the end that the rank writes to."""
        os.close(self.writer)
        os.set_blocking(self.reader, False)

    def pump(self) -> bool:
        """Pass on what is there; False once there is nothing more now (`open` tells whether there ever will be).

        The rest of a line that has begun is waited for a moment, so that lines of different ranks stay whole.
        """
        data = self._read()
        while data and not data.endswith(LINE_ENDS) and len(data) < LONGEST and self._more_comes():
            data += self._read()
        if not data:
            return False
        self._screen.writes += 1
        if self._keep:
            self._remember(data)
        write_all(self._target, data)
        return True

    def _read(self) -> bytes:
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return b""
        except OSError:  # a terminal whose other end is closed
            data = b""
        if not data:
            self.open = False
        return data

    def _more_comes(self) -> bool:
        return self.open and bool(select.select([self.reader], [], [], SETTLE)[0])

    def stands_last(self, start: int) -> bool:
        """Whether the text from position ``start`` of `tail` is the last on the screen, with nothing in between."""
        position = self._passed - len(self.tail) + start
        numbers = [number for before, number in self._chunks if before > position]
        begun = max((number for before, number in self._chunks if before <= position), default=0)
        return self._screen.writes - begun == len(numbers)

    def _remember(self, data: bytes) -> None:
        self._chunks.append((self._passed, self._screen.writes))
        self._passed += len(data)
        self.tail += data
        del self.tail[:-KEPT]
        if len(self._chunks) > 2 * KEPT_CHUNKS:
            del self._chunks[:-KEPT_CHUNKS]

    def close(self) -> None:
        """Stop listening."""
        self.open = False
        os.close(self.reader)


def write_all(fd: int, data: bytes) -> None:
    """Write everything. If nobody listens any more, the text is dropped: the ranks shall not end for that."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except BrokenPipeError:
            return


def _terminal(like: int) -> tuple[int, int]:
    """A pseudo terminal as large as ``like``, so that ranks colour and redraw as they would without us."""
    import fcntl
    import termios

    master, slave = os.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST  # the real terminal adds the carriage returns
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    size = fcntl.ioctl(like, termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    return master, slave
