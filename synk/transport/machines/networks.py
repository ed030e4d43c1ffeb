"""Find the addresses of this machine, and choose the one at which other machines reach it.

first host, interface -> own_address -> Listener
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network

from synk.values.errors import SynkStateError

SIOCGIFADDR = 0x8915  # of Linux: see netdevice(7)


def addresses() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(asker.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # the interface has no IPv4 address
                continue
            found[name] = socket.inet_ntoa(reply[20:24])
    return found


def own_address(host: str, others: Sequence[str], interface: str | None = None) -> str:
    """Return the address at which this machine, the first host, listens for the others.

    It is the address to which the host's name resolves. If that is a loopback address, such as 127.0.1.1 in
    Debian's /etc/hosts, it is the address from which this machine reaches the first of ``others`` instead.
    With ``interface``, it is the address of that interface.

    Raises SynkStateError if the first host is another machine, or this one has no such interface; TypeError
    if ``interface`` is no string.
    """
    mine = addresses()
    if interface is not None and short(host) == short(socket.gethostname()):  # whatever address others know
        return _of_interface(interface, mine)
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise SynkStateError(f"the first host, {host}, has no address here: {error}") from None
    is_loopback = ip_address(address).is_loopback
    if not (is_loopback or address in mine.values()):
        raise SynkStateError(
            f"the first host is the one on which the script runs, and {host} ({address}) is not this "
            f"machine ({', '.join(mine.values())}): put {socket.gethostname()} first, or start the script on "
            f"{host}, as sbatch does"
        )
    if interface is not None:
        return _of_interface(interface, mine)
    return address_towards(others[0]) if is_loopback and others else address


def short(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


def address_towards(other: str) -> str:
    """Return the address of this machine from which it reaches another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # of UDP: sends nothing
        return str(probe.getsockname()[0])


def _of_interface(interface: str, mine: dict[str, str]) -> str:
    """Return the address of an interface, given by its name or by its network."""
    if not isinstance(interface, str):
        raise TypeError(f"interface={interface!r} is no string, such as 'eth0' or '10.0.0.0/24'")
    if interface in mine:
        return mine[interface]
    with suppress(ValueError):  # the text is no network such as 10.0.0.0/24
        network = ip_network(interface, strict=False)
        for address in mine.values():
            if ip_address(address) in network:
                return address
    known = ", ".join(f"{name} ({address})" for name, address in mine.items())
    raise SynkStateError(f"interface={interface!r} is none of this machine, which has {known}")
