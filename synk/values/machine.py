"""The ranks of one machine among those of all machines of a run.

A rank is numbered over the whole run, as for rows, seeds and results. Its place is its number among the ranks
of its machine, as for that machine's barriers, mailboxes and segments.

    hosts, number of ranks on each -> machines -> Machine: rank = first + place
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Machine(NamedTuple):
    """One machine of a run.

    Attributes
    ----------
    number : int
        In the order of hosts; the master is on machine 0.
    host : str
    sizes : tuple of int
        The number of ranks on each machine of the run.
    """

    number: int
    host: str
    sizes: tuple[int, ...]

    @property
    def n_places(self) -> int:
        """The number of ranks on this machine."""
        return self.sizes[self.number]

    @property
    def first(self) -> int:
        """The lowest rank of this machine, which is at place 0."""
        return sum(self.sizes[: self.number])

    @property
    def n_ranks(self) -> int:
        """The number of ranks of the run."""
        return sum(self.sizes)

    @property
    def ranks(self) -> range:
        """The ranks of this machine, in the order of their places."""
        return range(self.first, self.first + self.n_places)


def machines(hosts: Sequence[str], sizes: Sequence[int]) -> list[Machine]:
    """Return the machines of a run, one for each of ``hosts``; ``sizes`` has the number of ranks on each."""
    return [Machine(number, host, tuple(sizes)) for number, host in enumerate(hosts)]
