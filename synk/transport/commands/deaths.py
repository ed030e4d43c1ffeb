"""Notice the death of a process whose answer a rank waits for.

    pidfd -> Deaths.register(poll) ... poll -> Deaths.report(what is readable) -> on_death(rank)

The kernel makes a pidfd readable when its process ends, so a death ends the wait within a millisecond. The
master waits for replies (`MasterChannel`) and at barriers (`Barrier`); both poll the pidfds and call
`report`.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Mapping

from synk.transport.commands.interfaces import OnDeath


class Deaths:
    """The processes whose death ends a wait of this rank.

    Attributes
    ----------
    found : callable
        Called with the rank of a process that is found dead, also by others who notice it; raises.

    Parameters
    ----------
    ranks : dict of int
        Ranks by descriptor; a descriptor becomes readable when the process of its rank dies.
    on_death : callable
        The attribute ``found``.
    """

    def __init__(self, ranks: Mapping[int, int], on_death: OnDeath):
        self._ranks = ranks
        self.found = on_death

    def register(self, poll: select.poll) -> None:
        """Add the descriptors to ``poll``, so that a death ends a sleep on it."""
        for descriptor in self._ranks:
            poll.register(descriptor, select.POLLIN)

    def report(self, readable: Iterable[int]) -> None:
        """Call `found` for each process that has died, given the descriptors that became readable."""
        for descriptor in readable:
            if descriptor in self._ranks:
                self.found(self._ranks[descriptor])
