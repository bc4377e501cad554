"""Free ports are free, taken ones are seen, and the interface towards a host is found."""

import socket
import sys

import pytest

from drivetrain.launch import ports


def test_taken_and_free():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = server.getsockname()[1]
        assert not ports.is_free(taken)
    assert ports.is_free(taken)
    port = ports.free_port()
    assert ports.is_free(port) and ports.FIRST <= port < ports.LAST


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the route")
def test_interface_towards_a_host():
    assert ports.loopback_interface() == "lo"
    assert ports.interface_towards("127.0.0.1", 80) == "lo"
    assert ports.interface_towards("no such host", 80) is None
