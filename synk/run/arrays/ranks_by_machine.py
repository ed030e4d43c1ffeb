"""The number of ranks on each machine of a run, in one object that all parts of the run share.

fork -> RanksByMachine ... restart -> use, with more or fewer ranks
"""

from __future__ import annotations

from collections.abc import Sequence


class RanksByMachine:
    """The numbers of ranks on the machines of a run, the master's first.

    Attributes
    ----------
    sizes : tuple of int
        The number of ranks on each machine.
    n_ranks : int
        The number of ranks on all machines.
    places : list of int
        The place of each rank: its number, from 0, among the ranks of its machine.
    """

    def __init__(self, sizes: Sequence[int]):
        self.use(sizes)

    def use(self, sizes: Sequence[int]) -> None:
        """Set the number of ranks on each machine, from which the other attributes follow."""
        self.sizes = tuple(sizes)
        self.n_ranks = sum(sizes)
        self.places = [place for size in sizes for place in range(size)]
