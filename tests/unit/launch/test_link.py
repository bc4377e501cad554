"""The line between the launchers of several machines, on one machine: who hears what, and who is not listened to."""

from __future__ import annotations

import os
import select
import socket

import pytest

from drivetrain.launch.link import LINE, Link
from ranks import free_port

BOUND = 20.0  # seconds; a bound on hanging


class Machine:
    """One launcher's end, and the pipe it writes to when there is a verdict."""

    def __init__(self, port: int, number: int) -> None:
        self.reader, self._writer = os.pipe()
        self.said: list[str] = []
        self.link = Link("127.0.0.1", port, number, self._writer, self.said.append)

    def verdict(self) -> int | None:
        ready, _, _ = select.select([self.reader], [], [], BOUND)
        assert ready, "no verdict"
        return self.link.verdict


@pytest.fixture
def machines():
    port = free_port()
    made = [Machine(port, number) for number in range(3)]
    _until(lambda: len(made[0].link._known) == 2)
    yield made
    for one in made:
        one.link.tell("done")


def _until(true):
    import time

    end = time.monotonic() + BOUND
    while not true():
        assert time.monotonic() < end
        select.select([], [], [], 0.01)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_reaches_all_others(machines, failing):
    machines[failing].link.tell("failed 7")
    assert [one.verdict() for i, one in enumerate(machines) if i != failing] == [7, 7]


def test_a_connection_that_breaks_is_a_failure(machines):
    for peer in list(machines[1].link._peers):
        peer.shutdown(socket.SHUT_RDWR)
    assert machines[0].verdict() == 1 and machines[2].verdict() == 1


def test_an_end_is_no_failure(machines):
    machines[1].link.tell("done")
    machines[0].link.tell("done")
    machines[2].link._thread.join(BOUND)
    assert not machines[2].link._thread.is_alive()
    assert [one.link.verdict for one in machines] == [None] * 3


@pytest.mark.parametrize("words", [b"failed 9\n", b"x" * (2 * LINE), b"GET / HTTP/1.1\r\n\r\n"])
def test_a_stranger_is_not_listened_to(machines, words):
    with socket.create_connection(("127.0.0.1", machines[0].link._port), timeout=BOUND) as stranger:
        stranger.sendall(words)
        try:
            assert stranger.recv(16) == b""  # hung up on
        except ConnectionResetError:
            pass
    assert machines[0].link.verdict is None and len(machines[0].link._known) == 2


def test_a_port_that_is_taken_is_said():
    port = free_port()
    with socket.create_server(("", port + 1)):
        alone = Machine(port, 0)
        alone.link._thread.join(BOUND)
        assert "next collective" in alone.said[0] and str(port + 1) in alone.said[0]
        alone.link.tell("done")
