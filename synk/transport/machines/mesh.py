"""Connect the leaders of all machines pairwise, by connections that both ends prove to be of one run.

addresses at which all leaders listen -> link -> SocketLinks

Each machine connects to those with a lower number, and accepts connections from those with a higher one.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from synk.transport.machines.handshake import Address, Listener, connect
from synk.transport.machines.links import Watch
from synk.transport.machines.socket_links import SocketLinks

LOOK_SECONDS = 0.1  # between two calls of `watch` during the wait
LINKED = b"*"  # a machine sends it to all others once it is connected to all of them


def link(
    machine: int,
    addresses: Sequence[Address],
    listener: Listener,
    token: bytes,
    deadline: float,
    watch: Watch = lambda: None,
) -> SocketLinks:
    """Connect machine number ``machine`` to all others, which call this function at the same time.

    ``addresses`` are those of all machines' listeners, in machine order, and ``listener`` is this machine's.
    ``deadline`` is a time of ``time.monotonic()``; ``watch()`` is called several times a second, and may
    raise to end the wait. Raises TimeoutError, or what `connect` raises, if a machine does not connect in
    time, and ConnectionError if other machines cannot reach each other.
    """
    ends: dict[int, socket.socket] = {}
    with ExitStack() as made:
        for other, address in enumerate(addresses[:machine]):
            ends[other], _ = connect(address, token, {"machine": machine}, deadline)
            made.callback(ends[other].close)
        while len(ends) < len(addresses) - 1:
            try:
                end, hello = listener.accept(token, {}, deadline, watch)
            except TimeoutError as error:
                silent = [place[0] for other, place in enumerate(addresses) if other not in {machine, *ends}]
                raise TimeoutError(f"{', '.join(silent)} has not called: {error}") from None
            if (
                "address" in hello
            ):  # a leader that reports for the next start of the run: it calls again later
                end.close()
                continue
            made.callback(end.close)
            ends[hello["machine"]] = end
        for end in ends.values():
            # A leader does not read while it computes; the kernel must not cut the connection for that.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        meet(ends, addresses, deadline, watch)
        made.pop_all()
    return SocketLinks(machine, ends)


def meet(
    ends: Mapping[int, socket.socket], addresses: Sequence[Address], deadline: float, watch: Watch
) -> None:
    """Tell all other machines that this one is connected to all, and wait until each of them says so too.

    Raises TimeoutError if one does not by the deadline, ConnectionError if one closes its connection instead.
    """
    waited, poll = {end.fileno(): machine for machine, end in ends.items()}, select.poll()
    for end in ends.values():
        with suppress(OSError):  # it is gone
            end.sendall(LINKED)
        poll.register(end, select.POLLIN)
    while waited:
        watch()
        left = deadline - time.monotonic()
        if left <= 0:
            late = ", ".join(addresses[machine][0] for machine in waited.values())
            raise TimeoutError(f"{late} does not reach all others")
        for descriptor, _ in poll.poll(1000 * min(left, LOOK_SECONDS)):
            machine = waited.pop(descriptor)
            poll.unregister(descriptor)
            heard = b""
            with suppress(OSError):
                heard = ends[machine].recv(len(LINKED))
            if heard != LINKED:
                raise ConnectionError(f"{addresses[machine][0]} does not reach all others")
