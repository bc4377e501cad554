"""A line between the launchers of several machines: when one of them sees a failure, all end, not only its own ranks.

Torch's agents meet at the start and at the end of a run. In between, a rank that is in no collective learns nothing of
another machine's death. The launchers therefore keep one connection each to that of machine 0, on the port after the
main one. It carries two words: ``done``, and ``failed`` with an exit code; a connection that breaks means failed.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable

RETRY = 0.5
"""Seconds between attempts to reach machine 0, whose launcher may be started later."""
LINE = 64
"""Bytes a message may have; whoever sends more does not speak this language."""


class Link:
    """One launcher's end. `verdict` is the exit code of a failure on another machine, once there was one."""

    def __init__(self, host: str, port: int, machine: int, wake: int, say: Callable[[str], None]) -> None:
        """
        Args:
            host: address of machine 0.
            port: the main port; the line uses the one after it.
            machine: number of this machine.
            wake: a descriptor that gets a byte when there is a verdict.
            say: prints one line of ours.
        """
        self.verdict: int | None = None
        self._host, self._port, self._machine, self._wake, self._say = host, port + 1, machine, wake, say
        self._hello = f"drivetrain {port}".encode()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, bytearray] = {}
        self._known: set[socket.socket] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self, word: str) -> None:
        """Tell the others ``done`` or ``failed <code>``, and hang up. The second time nobody is left to tell."""
        self._stopped.set()
        self._thread.join(2 * RETRY)
        self._spread(word.encode() + b"\n")
        for peer in list(self._peers):
            self._forget(peer)

    def _run(self) -> None:
        listener = self._listen() if self._machine == 0 else None
        if self._machine == 0 and listener is None:
            return
        while not self._stopped.is_set() and self.verdict is None:
            if listener is None and not self._peers and not self._connect():
                self._stopped.wait(RETRY)
                continue
            for key, _ in self._selector.select(RETRY):
                if listener is not None and key.fileobj is listener:
                    self._greet(listener.accept()[0])
                else:
                    self._hear(key.fileobj)  # type: ignore[arg-type]
        if listener is not None:
            listener.close()

    def _listen(self) -> socket.socket | None:
        try:
            listener = socket.create_server(("", self._port), backlog=64)
        except OSError as error:
            self._say(
                f"port {self._port} is not free ({error.strerror}), so machines see a failure on another one only at "
                "their next collective"
            )
            return None
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _connect(self) -> bool:
        try:
            peer = socket.create_connection((self._host, self._port), timeout=2.0)
        except OSError:
            return False
        self._greet(peer)
        self._known.add(peer)  # machine 0 is who we asked for; it has to recognise us, not we it
        return True

    def _greet(self, peer: socket.socket) -> None:
        peer.settimeout(2.0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._peers[peer] = bytearray()
        self._selector.register(peer, selectors.EVENT_READ)
        if self._machine:
            self._send(peer, self._hello + b"\n")

    def _hear(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(LINE)
        except OSError:
            data = b""
        pending = self._peers[peer]
        pending += data
        *lines, rest = bytes(pending).split(b"\n")
        pending[:] = rest
        for line in lines:
            self._heard(peer, line)
        if peer in self._peers and (not data or len(rest) > LINE):
            self._lost(peer)

    def _heard(self, peer: socket.socket, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if line == self._hello:
            self._known.add(peer)
        elif peer not in self._known:
            self._forget(peer)
        elif word == b"done":
            self._forget(peer)
            if self._machine:
                self._stopped.set()
        elif word == b"failed":
            self._failed(int(rest) if rest.isdigit() else 1, peer)

    def _lost(self, peer: socket.socket) -> None:
        known = peer in self._known
        self._forget(peer)
        if known and not self._stopped.is_set():
            self._failed(1, None)

    def _failed(self, code: int, source: socket.socket | None) -> None:
        self.verdict = code or 1
        if self._machine == 0:
            self._spread(f"failed {self.verdict}\n".encode(), but=source)
        os.write(self._wake, b"!")

    def _spread(self, message: bytes, but: socket.socket | None = None) -> None:
        for peer in [peer for peer in self._peers if peer is not but and peer in self._known]:
            self._send(peer, message)

    def _send(self, peer: socket.socket, message: bytes) -> None:
        try:
            peer.sendall(message)
        except OSError:
            self._forget(peer)  # it has ended; what it had to say it has said before

    def _forget(self, peer: socket.socket) -> None:
        if self._peers.pop(peer, None) is not None:
            self._selector.unregister(peer)
            peer.close()
        self._known.discard(peer)
