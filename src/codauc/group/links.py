"""Which network interface leads to another machine."""

from __future__ import annotations

import contextlib
import socket
import struct

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def interface_towards(host: str) -> str | None:
    """The interface with the address from which this machine reaches `host`, or None if unknown.

    >>> interface_towards("no.such.host.invalid") is None
    True
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only asks for the route
        mine = probe.getsockname()[0]
        return next((n for _, n in socket.if_nameindex() if _address(n) == mine), None)
    return None


def _address(interface: str) -> str | None:
    with contextlib.suppress(OSError, ImportError):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None
