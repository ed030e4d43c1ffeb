"""All-reduces that begin while the function before them still computes: those of a flat gradient.

    sequence: Call, AllReduce -> begin -> program: finished, finished, ... -> take -> finish

Where a sequence has a function and then an all-reduce of what it updates, and the program tells which parts
of the new value are final, ranks agree before the function runs and exchange the parts meanwhile. What
decides is the same on all ranks: the steps, the program, the kind of connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from synk.arrays.variables import RankVariables
from synk.comm import Communicator
from synk.comm.base import Parted
from synk.rank.program import RankProgram
from synk.values import messages


class Expected(NamedTuple):
    """A vector whose finished parts a program will announce."""

    length: int
    dtype: np.dtype[Any]


class Overlap:
    """The all-reduces that one rank has begun; programs announce finished parts to it."""

    def __init__(self, variables: RankVariables):
        self._variables = variables
        self._told: dict[int, Expected] = {}  # by identity of a variable's storage, which programs know
        self._begun: dict[int, Parted] = {}
        self._following: dict[int, Any] = {}  # by identity of a step of the present command

    # --- what programs tell ------------------------------------------------------------------------

    def expect(self, variable: Any, shape: tuple[int, ...], dtype: str) -> None:
        self._told[id(variable.container.storage)] = Expected(int(np.prod(shape)), np.dtype(dtype))

    def told(self) -> dict[int, Expected]:
        """Return all that has been expected since the last call."""
        told, self._told = self._told, {}
        return told

    def finished(self, variable: Any, array: Any, start: int) -> None:
        storage = variable.container.storage
        parted = self._begun.get(id(storage))
        # Another array is copied to where the value belongs only when the program ends.
        if parted is not None and storage[0] is array:
            parted.finished(array, start)

    # --- what the rank does --------------------------------------------------------------------------

    def look_ahead(self, steps: Sequence[Any]) -> None:
        """Learn which steps come next."""
        self._following = {id(step): following for step, following in pairwise(steps)}

    def begin(self, step: messages.Call, program: RankProgram, communicator: Communicator) -> None:
        """Agree with the other ranks on what goes out while a program computes, if the next step wants it."""
        following = self._following.get(id(step))
        # What a program asks of the others itself, or a second variable, would come in another order on ranks
        # without rows, which launch nothing before the function is through.
        if following is None or not following.may_begin_early or program.spec.needs_ranks:
            return
        identity = following.variables[0]
        if identity not in {update.variable for update in program.spec.updates}:
            return
        program.compile()  # it tells then what it will tell of; a rank without rows would not need it
        storage = self._storage(identity)
        # Of this program: which others a rank has compiled depends on the rows that it had.
        expected = program.announced.get(storage)
        parted = expected and communicator.parted(expected.length, expected.dtype, following.op)
        if parted:
            self._begun[storage] = parted

    def take(self, identity: int) -> Parted | None:
        """Return the all-reduce that was begun for a variable, once."""
        return self._begun.pop(self._storage(identity), None)

    def abandon(self) -> None:
        """Give up what was begun, since this rank failed."""
        begun, self._begun = self._begun, {}
        for parted in begun.values():
            parted.abandon()

    def _storage(self, identity: int) -> int:
        return id(self._variables[identity].container.storage)
