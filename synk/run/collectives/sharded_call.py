"""Do a rank's part of a sharded update: run the function of the vectors on the rank's part of them.

ShardedCall, from `ShardedUpdate` -> BoundParts: the rank's part of all vectors -> the function
SummedCall, where the ranks share no memory -> an all-reduce, then the update function
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from synk.run.collectives.reduce import AllReduceStep
from synk.run.rank.rank import Rank
from synk.transport.comm import SharedArrays
from synk.values import messages

CACHE_LINE = 64  # bytes; in no line of a vector do two ranks write


@dataclass(slots=True)
class SummedCall(messages.Call):
    """Add up a variable over the ranks, then run a function that reads it."""

    flat: int = 0

    phase = messages.COLLECTIVE

    def run(self, rank: Rank) -> Any:
        AllReduceStep((self.flat,), "sum").run(rank)
        return rank.call(self)


@dataclass(slots=True)
class ShardedCall(messages.Call):
    """Wait for all flat vectors, run the function of the vectors on this rank's part, wait for all parts."""

    flat: int = 0
    sums: int = 0  # the number of the function that returns this part's sums; 0 if there are none
    vectors: tuple[messages.ArrayRef, ...] = ()
    progress: Any = None  # the `ArrayRef` of the words in which each rank counts its updates
    cells: tuple[int, ...] = ()  # identities of the variables in whose place the function finds its parts
    variables: tuple[int, ...] = ()  # identities of the variables that live in the vectors

    phase = messages.COLLECTIVE

    def run(self, rank: Rank) -> None:
        bound = rank.bound.get(self.function)
        if bound is None or bound.step is not self:
            bound = rank.bound[self.function] = self._bind(rank)
        if bound.part_sums is not None:
            with rank.communicator.at_once("sums of update", "sum", bound.shared):
                mine = np.array(rank.compute(*bound.part_sums).values, bound.sums.dtype)
            bound.sums[...] = rank.communicator.all_reduce(mine, "sum")
        with rank.communicator.at_once("sharded update", "sum", bound.shared):
            bound.run(rank)

    def functions(self) -> tuple[int, ...]:
        return (self.function, self.sums) if self.sums else (self.function,)

    def _bind(self, rank: Rank) -> BoundParts:
        """Look up this rank's parts; its own values of the variables are in the vectors afterwards."""
        places = [rank.variables.shared_arrays(variable) for variable in self.variables]
        assert None not in places, "the variables have the shapes of their places in the vectors"
        flats = rank.variables.shared_arrays(self.flat)
        assert flats is not None, "the flat vector is stored in shared memory"
        vectors = [rank.segments.array(ref) for ref in self.vectors]
        start, stop = part(len(vectors[0]), rank.n_ranks, flats.mine.itemsize)[rank.rank]
        call = rank.bind(self)
        arguments = [
            *call.broadcast,
            *[one[start:stop] for one in flats],
            *[one[-1:].reshape(()) for one in flats],
        ]
        part_sums, sums = None, np.zeros(0, flats.mine.dtype)
        if self.sums:
            part_sums = rank.program(self.sums), arguments
            n_sums = call.program.spec.n_broadcast - len(arguments)
            sums = np.zeros(n_sums, flats.mine.dtype)
            arguments = [*arguments, *[sums[k : k + 1].reshape(()) for k in range(n_sums)]]
        cells = [rank.variables[one].container.storage for one in self.cells]
        shared = [flats, *[SharedArrays([one] * rank.n_ranks, rank.rank) for one in vectors]]
        mine = [one[start:stop] for one in vectors]
        progress = rank.segments.array(self.progress)[rank.rank]
        return BoundParts(self, call.program, arguments, mine, cells, progress, shared, part_sums, sums)


class BoundParts(NamedTuple):
    """A `ShardedCall` with the arrays of this rank's part."""

    step: ShardedCall
    program: Any
    arguments: list[Any]
    parts: list[Any]
    cells: list[list[Any]]  # the storage of the function's variables
    progress: Any  # the first element is the number of updates that this rank has begun and ended
    shared: list[SharedArrays]  # all ranks' flat vectors, and the vectors, for the ranks to compare
    part_sums: tuple[Any, list[Any]] | None  # the program of the sums of this part, and its arguments
    sums: Any  # where the program reads those of all parts

    def run(self, rank: Rank) -> None:
        """Run the function on the parts."""
        self.progress[0] += 1
        for cell, mine in zip(self.cells, self.parts, strict=True):
            cell[0] = mine
        try:
            rank.compute(self.program, self.arguments)
            for cell, mine in zip(self.cells, self.parts, strict=True):
                if cell[0] is not mine:
                    mine[...] = cell[0]
        finally:
            for cell, mine in zip(self.cells, self.parts, strict=True):
                cell[0] = mine[:0].copy()  # what a commit and the script see of it
        self.progress[0] += 1


def part(length: int, n_ranks: int, itemsize: int) -> list[tuple[int, int]]:
    """Return the elements ``start:stop`` of each rank: whole cache lines, but for the last one."""
    grain = CACHE_LINE // itemsize
    size = -(-length // (n_ranks * grain)) * grain
    return [(min(rank * size, length), min((rank + 1) * size, length)) for rank in range(n_ranks)]
