"""Link the leaders of all machines, each two of them by a connection that both ends prove to be of one run.

addresses at which all listen -> link -> SocketLinks

Each calls those before it, and is called by those behind it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from synk.machines.handshake import Address, Listener, connect
from synk.machines.links import Watch
from synk.machines.socket_links import SocketLinks


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
    up. Raises TimeoutError, or what `connect` raises, if not all come.
    """
    ends: dict[int, socket.socket] = {}
    with ExitStack() as made:
        for other, address in enumerate(addresses[:machine]):
            ends[other], _ = connect(address, token, {"machine": machine}, deadline)
            made.callback(ends[other].close)
        while len(ends) < len(addresses) - 1:
            try:
                end, hello = listener.accept(token, {}, deadline, watch)
            except TimeoutError:
                silent = [place[0] for other, place in enumerate(addresses) if other not in {machine, *ends}]
                raise TimeoutError(f"{', '.join(silent)} has not called {addresses[machine][0]}") from None
            made.callback(end.close)
            ends[hello["machine"]] = end
        for end in ends.values():
            # A leader that computes does not read, which is no reason to cut it off.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        made.pop_all()
    return SocketLinks(machine, ends)
