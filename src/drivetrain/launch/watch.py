"""Watch ranks until all have ended: pass on output and signals, end all when one fails, tell which failed first."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from drivetrain.launch.start import Event, Starter
from drivetrain.launch.streams import Relay, Screen, write_all
from drivetrain.launch.tail import last_words

AFTER_DEATH = 3.0
"""Seconds that the other ranks have after SIGTERM when one has failed."""
LOOK = 0.5
"""Seconds between looks at the ranks when nothing is heard of them."""
HEAD_START = 1.0
"""Seconds by which a rank that ended without a word is taken to have ended earlier than it was seen."""
LAST_OUTPUT = 1.0
"""Seconds for passing on what is left when all ranks have ended; what they left running may go on printing."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Rank:
    """What is known of one rank."""

    def __init__(self, number: int, out: Relay, err: Relay) -> None:
        self.number, self.out, self.err = number, out, err
        self.pid = 0
        self.code: int | None = None
        self.ended_at = 0.0
        self.failed_at: float | None = None
        self.failed_code = 0
        self.sent: set[int] = set()
        self.kill_at: float | None = None

    @property
    def failure(self) -> tuple[float, int] | None:
        """When this rank failed of itself, and with what code (negative: signal); None if it did not."""
        if self.failed_at is not None:
            return self.failed_at, self.failed_code
        if not self.code or -self.code in self.sent or (self.code > 0 and self.sent):
            return None
        # An end without a word is seen only after the peers have missed the rank. (An abort may itself be a reaction.)
        return self.ended_at - (0.0 if self.code == -signal.SIGABRT else HEAD_START), self.code

    def signal(self, number: int, *, whole_group: bool = False) -> None:
        """Send a signal to the rank, or also to every process it has started."""
        if not self.pid:
            return
        if self.code is None and not _is_ending(self.pid):
            self.sent.add(number)
        try:
            os.killpg(self.pid, number) if whole_group else os.kill(self.pid, number)
        except ProcessLookupError:
            pass  # it ended meanwhile


def _is_ending(pid: int) -> bool:
    """Whether the process is already on its way out, so that a signal sent now is not what ends it (Linux)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return state in "ZX" or bool(int(fields[5]) & 0x4)  # PF_EXITING


class Watcher:
    """Runs until every rank has ended.

    Args:
        starter: has started the ranks, or is about to.
        relays: output and error relay of each rank.
        screen: counts what is written.
        grace: seconds between passing on a signal and killing.
        say: prints one line of ours, or does nothing.
        tells: whether to tell at the end which rank failed and how.
    """

    def __init__(
        self,
        starter: Starter,
        relays: list[list[Relay]],
        screen: Screen,
        grace: float,
        say: Callable[[str], None],
        *,
        tells: bool = True,
    ) -> None:
        self.starter, self.screen, self.grace, self.say, self.tells = starter, screen, grace, say, tells
        self.ranks = [Rank(number, out, err) for number, (out, err) in enumerate(relays)]
        self.received: int | None = None
        self.failed = False

    def run(self) -> int:
        """Watch, and return the exit code for the launcher."""
        with self._signals() as wake:
            poll = select.poll()
            streams = {relay.reader: relay for rank in self.ranks for relay in (rank.out, rank.err)}
            for fd in (wake, self.starter.report, *streams):
                poll.register(fd, select.POLLIN)
            while any(rank.code is None for rank in self.ranks):
                ready = {fd for fd, _ in poll.poll(self._wait())}
                for fd in ready & streams.keys():
                    streams[fd].pump()
                    if not streams[fd].open:
                        poll.unregister(fd)
                if wake in ready:
                    self._heard(os.read(wake, 64))
                for event in self.starter.events():
                    self._happened(event)
                if self.received is not None and not any(rank.pid for rank in self.ranks):
                    return 128 + self.received  # nothing has started yet, and nothing shall
                self._kill_late()
        return self._finish()

    def _wait(self) -> float:
        """Milliseconds until something must be looked at."""
        now = time.monotonic()
        waits = [rank.kill_at - now for rank in self.ranks if rank.code is None and rank.kill_at is not None]
        return max(0.0, min([LOOK, *waits])) * 1000

    def _happened(self, event: Event) -> None:
        rank = self.ranks[event.rank]
        if event.kind == "started":
            rank.pid = event.pid
            if self.received is not None:
                self._stop([rank], self.received, self.grace)
            elif self.failed:
                self._stop([rank], signal.SIGTERM, AFTER_DEATH)
            return
        if event.kind == "failed":
            rank.failed_at, rank.failed_code = event.at, event.code
            rank.kill_at = rank.kill_at or time.monotonic() + self.grace  # its exit handlers may wait for the others
        else:
            rank.code, rank.ended_at = event.code, event.at
            if rank.failure is not None or rank.sent:
                rank.signal(signal.SIGKILL, whole_group=True)  # what it started must not outlive a failed rank
        if rank.failure is not None and not self.failed and self.received is None:
            self.failed = True
            self._stop([other for other in self.ranks if other is not rank], signal.SIGTERM, AFTER_DEATH)

    def _stop(self, ranks: list[Rank], number: int, seconds: float) -> None:
        """Send a signal, and kill those that are still there after so many seconds."""
        for rank in ranks:
            if rank.code is None:
                rank.kill_at = time.monotonic() + seconds
                rank.signal(number)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for rank in self.ranks:
            if rank.code is None and rank.kill_at is not None and now >= rank.kill_at:
                rank.kill_at = now + LOOK
                rank.signal(signal.SIGKILL, whole_group=True)

    def _heard(self, numbers: bytes) -> None:
        """Act on signals to the launcher: pass the first one on, kill at the second interrupt."""
        for number in numbers:
            if number not in FORWARDED:
                continue
            if self.received is None:
                self.received = number
                again = "; again: at once" if number == signal.SIGINT else ""
                self.say(f"{signal.Signals(number).name} passed on to the ranks; they have {self.grace:g} s{again}")
                self._stop(self.ranks, number, self.grace)
            elif number == signal.SIGINT:
                self._stop(self.ranks, number, 0.0)

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Collect signals as bytes in a pipe whose reading end is given."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in (*FORWARDED, signal.SIGCHLD)}
        try:
            yield reader
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.close(reader)
            os.close(writer)

    def _finish(self) -> int:
        """Pass on what is left of the output, tell how the run ended, and return the exit code."""
        end = time.monotonic() + LAST_OUTPUT
        for rank in self.ranks:
            for relay in (rank.out, rank.err):
                while relay.open and relay.pump() and time.monotonic() < end:
                    pass
        failures = [(rank.failure[0], rank.number) for rank in self.ranks if rank.failure is not None]
        if self.received is not None:
            return self._code_after_signal()
        if not failures:
            return 0
        first = self.ranks[min(failures)[1]]
        assert first.failure is not None
        code = first.failure[1]
        if self.tells:
            self._tell(first, code)
        return code if code >= 0 else 128 - code

    def _code_after_signal(self) -> int:
        """0 if every rank ended well, else what the first rank made of the signal, or 128 + signal if it was killed."""
        assert self.received is not None
        codes = [rank.failed_code if rank.failed_at is not None else rank.code or 0 for rank in self.ranks]
        bad = next((code for code in codes if code), 0)
        return 128 + self.received if bad < 0 else bad

    def _tell(self, rank: Rank, code: int) -> None:
        text = rank.err.tail.decode(errors="surrogateescape")
        words, start, at_end = last_words(text)
        position = len(text[:start].encode(errors="surrogateescape"))
        if words and not (at_end and rank.err.stands_last(position)):
            self.say(f"rank {rank.number} failed first; the end of what it said:")
            write_all(2, (words + "\n").encode(errors="surrogateescape"))
        if code < 0:
            name = signal.Signals(-code).name
            hint = " If nobody sent it, the machine ran out of memory." if name == "SIGKILL" else ""
            self.say(f"rank {rank.number} was ended by {name}.{hint}")
        elif not words:
            self.say(f"rank {rank.number} ended with exit code {code}.")
