"""The start of a run on several machines: leaders call the master, then all are linked with each other.

Call (a leader) -> Listener (master), Called -> link_called -> addresses of all -> LeaderCall.leaders
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from synk.run.on_machines.job import Called
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

LINK_SECONDS = 6.0  # for a leader to reach all others
MORE_SECONDS = 1.0  # for the master, which is to hear why one does not


class LeaderCall:
    """A leader's call at the master, for one run.

    Attributes
    ----------
    end : LeaderEnd
    said : dict
        The master's answer.
    """

    def __init__(self, world: Any, master: Address, token: bytes, hello: Mapping[str, Any], deadline: float):
        """Call; raise what `connect` raises."""
        self._world, self._token = world, token
        self._listener = Listener(address_towards(master[0]))
        hello = {**hello, "machine": world.rank, "address": self._listener.address}
        try:
            end, self.said = connect(master, token, hello, deadline)
        except BaseException:
            self._listener.close()
            raise
        self.end = LeaderEnd(end)

    def leaders(self) -> Leaders:
        """Return the leaders of all machines, once all have called."""
        with closing(self._listener):
            addresses, _ = self.end.receive()
            deadline = monotonic() + LINK_SECONDS
            links = link(self._world.rank, addresses, self._listener, self._token, deadline)
        # MPI comes last: it waits for all others without an end.
        return LinkedLeaders(links, MachineAllReduce(MpiLinks(self._world)))


def link_called(
    called: Sequence[Called], listener: Listener, token: bytes, watch: Watch = lambda: None
) -> SocketLinks:
    """Link the master with all leaders that have called, and these with each other.

    ``watch()`` is called now and then. Raises SynkStateError if not all reach each other.
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
