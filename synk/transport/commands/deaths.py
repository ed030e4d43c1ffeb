"""Notice the death of a process whose answer a rank waits for.

    pidfd -> Deaths.register(poll) ... poll -> Deaths.report(what is readable) -> on_death(rank)

The kernel makes a pidfd readable when its process ends, so a death ends the wait within a millisecond. The
master waits at two places, for replies (`MasterChannel`) and at a barrier (`Barrier`), and asks here at both.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Mapping

from synk.transport.commands.interfaces import OnDeath


class Deaths:
    """The processes that a rank depends on.

    Attributes
    ----------
    found : callable
        Called with the rank of a process that is found dead, in another way too; raises.

    Parameters
    ----------
    ranks : dict of int
        Rank by descriptor; one becomes readable when the process of that rank dies.
    on_death : callable
        The attribute ``found``.
    """

    def __init__(self, ranks: Mapping[int, int], on_death: OnDeath):
        self._ranks = ranks
        self.found = on_death

    def register(self, poll: select.poll) -> None:
        """Let the sleeper on ``poll`` wake up at a death."""
        for descriptor in self._ranks:
            poll.register(descriptor, select.POLLIN)

    def report(self, readable: Iterable[int]) -> None:
        """Tell of those that have died, given the descriptors on which a sleeper woke up."""
        for descriptor in readable:
            if descriptor in self._ranks:
                self.found(self._ranks[descriptor])
