"""All-reduces that begin while the function before them still computes: those of a flat gradient.

    sequence: Call, AllReduce -> begin -> program: finished, finished, ... -> all_reduce, of what was begun

Where a sequence has a function and then an all-reduce of what it updates, and the program tells which parts
of the new value are final, ranks agree before the function runs and exchange the parts meanwhile. What
decides is the same on all ranks: the steps, the program, the kind of connection.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from synk.gpu.rank.gpu_rank import GpuRank
from synk.gpu.speedups.overlapping import OverlappingCommunicator, PartedReduction
from synk.run.rank.program import RankProgram
from synk.values import messages


class Expected(NamedTuple):
    """A vector whose finished parts a program will announce."""

    length: int
    dtype: np.dtype[Any]


class PartAnnouncer:
    """Hands the finished parts of what one program updates on to an all-reduce; the program's announcer."""

    def __init__(self) -> None:
        self.expected: dict[int, Expected] = {}  # by identity of a variable's storage, which programs know
        self._storage: Any = None
        self._parted: PartedReduction | None = None

    def serve(self, storage: Any, parted: PartedReduction | None) -> None:
        """Hand on parts of the value in ``storage`` in the next call."""
        self._storage, self._parted = storage, parted

    def expect(self, variable: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.expected[id(variable.container.storage)] = Expected(int(np.prod(shape)), np.dtype(dtype))

    def finished(self, variable: Any, array: Any, start: int) -> None:
        storage = variable.container.storage
        # Another array is copied to where the value belongs only when the program ends.
        if self._parted is not None and storage is self._storage and storage[0] is array:
            self._parted.finished(array, start)


class OverlappingRank(GpuRank):
    """A `GpuRank` that exchanges what a function updates while it computes."""

    communicator: OverlappingCommunicator

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self._announcers: dict[int, PartAnnouncer] = {}  # by function
        self._following: dict[int, Any] = {}  # by identity of a step of the present command

    def build(self, message: messages.Build) -> None:
        announcer = self._announcers[message.function] = PartAnnouncer()
        self._programs[message.function] = RankProgram(
            message.spec, self._context._replace(announcer=announcer)
        )

    def forget(self, message: messages.Forget) -> None:
        super().forget(message)
        self._announcers.pop(message.function, None)

    def run(self, command: messages.Command) -> tuple[Any, ...]:
        try:
            return super().run(command)
        except BaseException:
            self.communicator.abandon()
            raise

    def _run_steps(self, command: messages.Command) -> tuple[Any, ...]:
        self._following = {id(step): following for step, following in pairwise(command.steps)}
        return super()._run_steps(command)

    def call(self, step: messages.Call) -> messages.Results | None:
        self._begin(step)
        return super().call(step)

    def _begin(self, step: messages.Call) -> None:
        """Agree with the other ranks on what goes out while a program computes, if the next step wants it."""
        program, announcer = self.program(step.function), self._announcers[step.function]
        announcer.serve(None, None)
        following = self._following.get(id(step))
        # What a program asks of the others itself, or a second variable, would come in another order on ranks
        # without rows, which launch nothing before the function is through.
        if following is None or not following.may_begin_early or program.spec.needs_ranks:
            return
        identity = following.variables[0]
        if identity not in {update.variable for update in program.spec.updates}:
            return
        program.compile()  # it tells then what it will announce; a rank without rows would not need it
        storage = self.variables[identity].container.storage
        # Of this program: which others a rank has compiled depends on the rows that it had.
        expected = announcer.expected.get(id(storage))
        if expected is not None:
            parted = self.communicator.begin(expected.length, expected.dtype, following.op)
            announcer.serve(storage, parted)
