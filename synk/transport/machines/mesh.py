"""Link the leaders of all machines, each two of them by a connection that both ends prove to be of one run.

addresses at which all listen -> link -> SocketLinks

Each calls those before it, and is called by those behind it.
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

LOOK_SECONDS = 0.1  # between looks at what else may end the wait
LINKED = b"*"


def link(
    machine: int,
    addresses: Sequence[Address],
    listener: Listener,
    token: bytes,
    deadline: float,
    watch: Watch = lambda: None,
) -> SocketLinks:
    """Return the links of a machine to all others, at the addresses of which all ``link`` at the same time.

    ``deadline`` is a moment of ``time.monotonic()``; ``watch()`` is called now and then, and raises to give
    up. Raises TimeoutError, or what `connect` raises, if not all come, and ConnectionError where others do
    not reach each other.
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
            if "address" in hello:  # it calls for another start: not yet
                end.close()
                continue
            made.callback(end.close)
            ends[hello["machine"]] = end
        for end in ends.values():
            # A leader that computes does not read, which is no reason to cut it off.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        meet(ends, addresses, deadline, watch)
        made.pop_all()
    return SocketLinks(machine, ends)


def meet(
    ends: Mapping[int, socket.socket], addresses: Sequence[Address], deadline: float, watch: Watch
) -> None:
    """Tell all other machines that this one is linked to all, and wait until each of them says so too.

    Raises TimeoutError if one does not by the deadline, ConnectionError if one closes its link instead.
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
