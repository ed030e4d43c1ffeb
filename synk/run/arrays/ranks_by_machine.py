"""The number of ranks of a run, which all parts of the run read here.

fork -> RanksByMachine ... restart -> use: more or fewer
"""

from __future__ import annotations

from collections.abc import Sequence


class RanksByMachine:
    """The numbers of ranks on the machines of a run, the master's first.

    Attributes
    ----------
    sizes : tuple of int
        By machine.
    n_ranks : int
        Of all machines.
    places : list of int
        By rank, its number among those of its machine.
    """

    def __init__(self, sizes: Sequence[int]):
        self.use(sizes)

    def use(self, sizes: Sequence[int]) -> None:
        """Go on with so many ranks on each machine."""
        self.sizes = tuple(sizes)
        self.n_ranks = sum(sizes)
        self.places = [place for size in sizes for place in range(size)]
