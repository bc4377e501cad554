"""Ports and network interfaces of this machine."""

from __future__ import annotations

import os
import socket
import sys

LOOPBACK = "127.0.0.1"
# Below the range from which the system takes the ports of outgoing connections, so that none of those gets in between.
FIRST, LAST = 20000, 32000
TRIES = 200


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = LOOPBACK) -> int:
    """A port on which nothing listens now."""
    for _ in range(TRIES):
        port = FIRST + int.from_bytes(os.urandom(4), "little") % (LAST - FIRST)
        if is_free(port, host):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def loopback_interface() -> str | None:
    """Name of the loopback interface."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), None)


def interface_towards(host: str, port: int) -> str | None:
    """Name of the interface through which this machine reaches ``host`` (IPv4, Linux), or None if it is unknown."""
    if sys.platform != "linux":
        return None
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # sends nothing; it only asks for the route
        except OSError:
            return None
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
