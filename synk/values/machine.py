"""The ranks of one machine among those of all machines of a run.

"Rank" counts over the whole run: rows, seeds, results. "Place" is an index into the words of one machine:
barriers, mailboxes, segments.

    hosts, ranks of each -> machines -> Machine -> a leader, its workers: rank = first + place
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
        Ranks of each machine.
    """

    number: int
    host: str
    sizes: tuple[int, ...]

    @property
    def n_places(self) -> int:
        """Ranks of this machine."""
        return self.sizes[self.number]

    @property
    def first(self) -> int:
        """The rank at place 0."""
        return sum(self.sizes[: self.number])

    @property
    def n_ranks(self) -> int:
        """Ranks of the run."""
        return sum(self.sizes)

    @property
    def ranks(self) -> range:
        """Ranks of this machine, in the order of places."""
        return range(self.first, self.first + self.n_places)


def machines(hosts: Sequence[str], sizes: Sequence[int]) -> list[Machine]:
    """Return the machines of a run: hosts, with so many ranks each."""
    return [Machine(number, host, tuple(sizes)) for number, host in enumerate(hosts)]
