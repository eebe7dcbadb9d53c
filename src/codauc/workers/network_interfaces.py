"""Which network interface leads to another machine."""

from __future__ import annotations

import contextlib
import socket
import struct

from codauc.workers.group import GroupError

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


def loopback() -> str:
    """The interface whose addresses no other machine can reach.

    >>> loopback().startswith("lo")
    True
    """
    name = interface_towards("127.0.0.1")
    if name is None:  # outside Linux its addresses are not known
        name = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), None)
    if name is None:
        raise GroupError(
            "no loopback interface: expected one, over which the workers of this machine can reach "
            "each other and nobody else; bring it up (ip link set lo up), or use simulate=True."
        )
    return name


def _address(interface: str) -> str | None:
    with contextlib.suppress(OSError, ImportError):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None
