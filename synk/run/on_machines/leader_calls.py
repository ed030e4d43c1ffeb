"""The start of a run on several machines: each leader calls the master, then all are linked with each other.

LeaderCall (a leader) -> Listener (master) -> link_leaders -> addresses of all -> LeaderCall.leaders
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from synk.run.on_machines.job import LeaderConnection
from synk.transport.commands.frames import encode, send
from synk.transport.commands.interfaces import Leaders
from synk.transport.commands.leader_link import LeaderEnd
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.handshake import Address, Listener, connect
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.machines.links import Watch
from synk.transport.machines.mesh import link
from synk.transport.machines.mpi_links import MpiLinks
from synk.transport.machines.networks import address_towards
from synk.transport.machines.socket_links import SocketLinks
from synk.values.errors import SynkStateError

LINK_SECONDS = 6.0  # how long a leader tries to reach all others
MORE_SECONDS = 1.0  # how much longer the master waits, so that a leader can say why it did not reach another


class LeaderCall:
    """A leader's connection to the master, made at the start of a run.

    Attributes
    ----------
    end : LeaderEnd
        The leader's end of the connection.
    answer : dict
        The master's answer to the call.
    """

    def __init__(self, world: Any, master: Address, token: bytes, hello: Mapping[str, Any], deadline: float):
        """Connect to the master, and send ``hello`` and this machine's address; raise as `connect`."""
        self._world, self._token = world, token
        self._listener = Listener(address_towards(master[0]))
        hello = {**hello, "machine": world.rank, "address": self._listener.address}
        try:
            end, self.answer = connect(master, token, hello, deadline)
        except BaseException:
            self._listener.close()
            raise
        self.end = LeaderEnd(end)

    def leaders(self) -> Leaders:
        """Wait for the addresses of all machines, link this leader with all others, and return the links."""
        with closing(self._listener):
            addresses, _ = self.end.receive()
            deadline = monotonic() + LINK_SECONDS
            links = link(self._world.rank, addresses, self._listener, self._token, deadline)
        # MPI comes last: it waits for all others, without a time limit.
        return LinkedLeaders(links, MachineAllReduce(MpiLinks(self._world)))


def link_leaders(
    called: Sequence[LeaderConnection], listener: Listener, token: bytes, watch: Watch = lambda: None
) -> SocketLinks:
    """Link the master with all leaders that have called, and the leaders with each other.

    ``watch()`` is called while it waits, and may raise. Raises SynkStateError if two of them do not reach
    each other.
    """
    at = {hello["machine"]: hello["address"] for _, hello in called}
    addresses = [listener.address, *(at[machine] for machine in sorted(at))]
    deadline = monotonic() + LINK_SECONDS + MORE_SECONDS
    try:
        for end, _ in called:
            send(end, encode(addresses))
        return link(0, addresses, listener, token, deadline, watch)
    except (TimeoutError, ConnectionError) as error:
        raise SynkStateError(
            "the machines do not reach each other, by TCP at ports that the system chooses: a firewall may "
            f"be between ({error})"
        ) from None
