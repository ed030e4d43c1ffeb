"""What every rank does with a command.

    Attach, Share, Build, ... -> Rank.prepare
    Call, AllReduce, ...      -> Rank.run -> results

Workers do so in a loop, see ``loop``; the master for its own part, without one.

Imports floor 3 and below.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from synk import messages
from synk.comm import Communicator
from synk.device import Device
from synk.memory.segments import SegmentTable
from synk.rank import shared_steps
from synk.rank.connection import Connection
from synk.rank.overlap import Overlap
from synk.rank.program import Program, ProgramContext
from synk.rank.results import on_host
from synk.rank.shards import Shards, rows_of
from synk.variables import RankVariables
from synk.wire import sync
from synk.wire.sync import Barrier, ControlBlock

IN_HOST_MEMORY = Connection()


class Rank:
    """One rank of a run: its device, segments, variables, programs and connection.

    Parameters
    ----------
    communicator : Communicator
        Of NumPy arrays. Knows the rank's number and the size of the run.
    control, barrier
        The run's shared words, and this rank's barrier on them.
    device, segments, variables
        This rank's.
    connection : Connection
        How the arrays of all ranks' devices meet.
    """

    def __init__(
        self,
        communicator: Communicator,
        control: ControlBlock,
        barrier: Barrier,
        device: Device,
        segments: SegmentTable,
        variables: RankVariables,
        connection: Connection = IN_HOST_MEMORY,
    ):
        self.rank = communicator.rank
        self.n_ranks = communicator.n_ranks
        self.segments = segments
        self.variables = variables
        self.device = device
        self._connection = connection
        self.join(communicator, control, barrier)
        self.overlap = Overlap(variables) if connection.overlap else None
        self._context = ProgramContext(
            device, variables, lambda: self.communicator, self._compiling, self.overlap
        )
        self._programs: dict[int, Program] = {}
        self._shards = Shards(self.rank, self.n_ranks, device, segments)

    def rest(self) -> None:
        """End the thread of this rank, if it has one: before a fork, and at the end of the run."""
        self._shards.rest()

    def part(self) -> None:
        """Give up the link to the other ranks, whose processes have ended.

        The master does so. A worker just leaves: NCCL might keep it waiting for the others here.
        """
        self.communicator.close()

    def join(self, communicator: Communicator, control: ControlBlock, barrier: Barrier) -> None:
        """Work with these ranks from now on."""
        # What shared variables and programs meet the other ranks through: it takes arrays of the device.
        self.communicator = self._connection.communicator(communicator, control, barrier, self.device)
        self.barrier = barrier
        self._control = control

    # --- messages without an answer ----------------------------------------------------------

    def prepare(self, message: Any, descriptor: int | None = None) -> Any:
        """Follow a message that needs no answer."""
        return PREPARATIONS[type(message)](self, message, descriptor)

    def detach(self, message: messages.Detach) -> None:
        self._shards.detach(message.segment)

    def build(self, message: messages.Build) -> None:
        self._programs[message.function] = Program(message.spec, self._context)

    def forget(self, message: messages.Forget) -> None:
        self._programs.pop(message.function, None)
        self._shards.forget(message.function)
        self._collect_garbage()

    def move_in(self, message: messages.MoveIn) -> None:
        homes = [self.segments.array(ref) for ref in message.homes]
        self.variables.move_in(message.identity, homes)

    def unshare(self, message: messages.Unshare) -> None:
        self.variables.drop(message.identity)
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        # Graphs are cycles, and an idle worker makes nothing that would start a collection. The
        # master's is its own affair: this may run inside one.
        if self.rank > 0:
            gc.collect()

    def value(self, variable: int) -> Any:
        """Return the value of a shared variable where the communicator takes it.

        Which side that is follows from the run alone, so all ranks bring it from the same.
        """
        # Alone, a rank has nothing to send: the value stays where it is.
        return self.variables.value(variable) if self.n_ranks == 1 else self.variables.on_device(variable)

    def program(self, function: int) -> Program:
        return self._programs[function]

    def builds(self) -> list[messages.Build]:
        """Return the messages that make another rank's functions the same as this one's."""
        return [messages.Build(number, program.spec) for number, program in self._programs.copy().items()]

    # --- commands ----------------------------------------------------------------------------

    def run(self, command: messages.Run) -> tuple[Any, ...]:
        """Do this rank's part of every step and return its results, one per step."""
        self.barrier.begin(command.number)
        try:
            self.device.bind()
            if self.overlap is not None:
                self.overlap.look_ahead(command.steps)
            results = tuple([self._step(step) for step in command.steps])
            # To fetch a number is to wait for the GPU: now nothing is left to launch.
            return results if self.device.xp is np else on_host(results, self.device)
        except BaseException:
            # Before anything else: the others may be waiting for this rank.
            self.barrier.fail()
            if self.overlap is not None:
                self.overlap.abandon()
            raise
        finally:
            self.enter(sync.IDLE)

    def _step(self, step: Any) -> Any:
        phase, handler = STEPS[type(step)]
        self.enter(phase)
        if self.overlap is not None and isinstance(step, messages.Call):
            self.overlap.begin(step, self._programs[step.function], self.communicator)
        return handler(self, step)

    def enter(self, phase: int) -> None:
        """Tell the other ranks what this one is doing."""
        self._control.set(self.rank, sync.PHASE, phase)

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Tell so while a program that is needed now compiles."""
        phase = self._control.get(self.rank, sync.PHASE)
        self.enter(sync.COMPILING)
        try:
            yield
        finally:
            self.enter(phase)

    def compile(self, step: messages.Compile) -> None:
        for function in step.functions:
            self._programs[function].compile()

    def call(self, step: messages.Call) -> list[Any]:
        program = self._programs[step.function]
        n_scattered = program.spec.n_scattered
        scattered, broadcast = step.inputs[:n_scattered], step.inputs[n_scattered:]
        indices = self._indices(step.indices)
        arrays = [self.segments.array(ref) for ref in scattered]
        with self._shards.read():
            results = program.run(
                self._shards.inputs(step, arrays, indices, program.on_device),
                [self.segments.array(ref) for ref in broadcast],
                self._sliced(step, program, indices),
                any_rows=step.total_rows > 0,
                num_slices=step.num_slices,
            )
        if step.total_rows == 0 and program.spec.has_rows and self.rank > 0:
            return [None] * len(results)  # all computed the same on empty input
        return results

    def _sliced(self, step: messages.Call, program: Program, indices: Any) -> list[Any]:
        if step.shares is None:
            return []
        rows = rows_of(step.shares[self.rank], indices)
        sliced = partial(self._shards.sliced, self.variables, rows=rows, to_device=program.on_device)
        return [sliced(variable) for variable in program.spec.sliceables]

    def _indices(self, ref: messages.ArrayRef | None) -> Any:
        return None if ref is None else self.segments.array(ref)


class Handler(NamedTuple):
    """How a step runs, and what the rank is said to be doing meanwhile."""

    phase: int
    run: Callable[[Rank, Any], Any]


STEPS: dict[type, Handler] = {
    messages.Compile: Handler(sync.COMPILING, Rank.compile),
    messages.Call: Handler(sync.COMPUTING, Rank.call),
    **{step: Handler(sync.COLLECTIVE, run) for step, run in shared_steps.HANDLERS.items()},
}

PREPARATIONS: dict[type, Callable[[Rank, Any, int | None], Any]] = {
    messages.Attach: lambda rank, message, descriptor: rank.segments.attach(message, descriptor),
    messages.Detach: lambda rank, message, _: rank.detach(message),
    messages.Share: lambda rank, message, _: rank.variables.add(message),
    messages.MoveIn: lambda rank, message, _: rank.move_in(message),
    messages.Unshare: lambda rank, message, _: rank.unshare(message),
    messages.Build: lambda rank, message, _: rank.build(message),
    messages.Forget: lambda rank, message, _: rank.forget(message),
}
