"""One rank of a run: it handles the master's messages, and does its part of each command.

    Attach, Share, Build, ... -> Rank.prepare
    Call, AllReduce, ...      -> Rank.run -> results

Workers call these methods in a loop (``loop``), the master directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from synk.compile.regions.native_function import agree, begin
from synk.run.arrays.variables import RankVariables
from synk.run.device import Device
from synk.run.rank.program import RankProgram
from synk.run.rank.shards import Shards, rows_of
from synk.run.rank.variants import ProgramContext
from synk.transport.comm import Communicator
from synk.transport.commands.interfaces import Peers
from synk.transport.memory.segments import SegmentTable
from synk.values import messages
from synk.values.rows import SelectedRows, split


class Rank:
    """One rank of a run: its device, segments, variables, programs and peers, the other ranks.

    ``communicator`` exchanges arrays of the rank's device.
    """

    def __init__(
        self,
        peers: Peers,
        communicator: Communicator,
        device: Device,
        segments: SegmentTable,
        variables: RankVariables,
    ):
        self.rank = peers.rank
        self.peers, self.communicator = peers, communicator
        self.segments = segments
        self.variables = variables
        self.device = device
        self._context = ProgramContext(device, variables, self, self._compiling)
        self.has_garbage = False  # whether graphs were dropped: their cycles wait for the garbage collector
        self._programs: dict[int, RankProgram] = {}  # by the function's number
        self.objects: dict[int, Callable[..., Any]] = {}  # the objects of `synk.on_ranks`, by number
        self.bound: dict[int, Any] = {}  # by function: its last step, with the arrays that it refers to
        segments.before_drop = self.bound.clear  # these arrays would keep a dropped segment in memory
        self._shards = Shards(self.rank, self.n_ranks)
        self.recorder: Any = None  # while a `synk.timeline` is open

    @property
    def n_ranks(self) -> int:
        return self.peers.n_ranks

    def end_threads(self) -> None:
        """End the threads that gather rows, if there are any: before a fork, and at the end of the run."""
        self._shards.end_threads()

    def disconnect(self) -> None:
        """Drop the objects of `synk.on_ranks`, and close the communicator, after the workers have ended.

        Only the master and leaders call it: threads of objects would outlive the run there. A worker exits
        without it, as a device's library might make it wait for others here.
        """
        self.objects.clear()
        self.communicator.close()

    def join(self, peers: Peers, communicator: Communicator) -> None:
        """Work with new workers from now on, after a restart."""
        self.peers, self.communicator = peers, communicator
        self._shards = Shards(self.rank, self.n_ranks)
        self.bound.clear()  # they refer to the former shards

    def get_ready(self) -> None:
        """Compile the C library that all programs call, while the rank is idle, on one rank per machine."""
        if self.device.xp is np and self.peers.place == 1:
            begin()

    # --- messages without an answer ----------------------------------------------------------

    def prepare(self, message: Any, descriptor: int | None = None) -> Any:
        """Handle a message that has no reply."""
        return PREPARATIONS[type(message)](self, message, descriptor)

    def prepare_all(self, several: messages.Several) -> None:
        """Handle several messages, also those after a failed one; then raise the first exception."""
        errors = []
        for message in several.messages:
            try:
                self.prepare(message)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def detach(self, message: messages.Detach) -> None:
        self.segments.drop(message.segment)

    def build(self, message: messages.Build) -> None:
        self._programs[message.function] = RankProgram(message.spec, self._context)
        self.bound.pop(message.function, None)

    def forget(self, message: messages.Forget) -> None:
        self._programs.pop(message.function, None)
        self.bound.pop(message.function, None)
        self._shards.forget(message.function)
        self.has_garbage = True

    def drop_object(self, message: messages.DropObject) -> None:
        self.objects.pop(message.number, None)

    def use_storage(self, message: messages.UseStorage) -> None:
        """Store a shared variable in this rank's array in shared memory, known with those of its machine."""
        first, place = self.rank - self.peers.place, self.peers.place
        mine = message.arrays[first : first + self.peers.n_places]
        self.variables.use_storage(message.identity, [self.segments.array(ref) for ref in mine], place)

    def leave_storage(self, message: messages.LeaveStorage) -> None:
        self.variables.leave_storage(message.identities)

    def unshare(self, message: messages.Unshare) -> None:
        self.variables.drop(message.identity)
        self.has_garbage = True

    def value(self, variable: int) -> Any:
        """Return the value of a shared variable on the side, host or device, where the communicator takes it.

        The side depends on the run only, so it is the same on all ranks.
        """
        # With one rank nothing is sent, so the value stays where it is.
        if self.peers.n_ranks == 1:
            return self.variables.value(variable)
        return self.variables.on_device(variable)

    def program(self, function: int) -> RankProgram:
        return self._programs[function]

    @contextmanager
    def running(self, programs: Mapping[int, RankProgram]) -> Iterator[None]:
        """Inside this context, run these programs instead of the ones of the same functions."""
        others = self._programs
        self._programs = {**others, **programs}
        self.bound.clear()
        try:
            yield
        finally:
            self._programs = others
            self.bound.clear()

    def builds(self) -> list[messages.Build]:
        """Return the messages from which another rank builds the functions that this one has."""
        return [messages.Build(number, program.spec) for number, program in self._programs.copy().items()]

    # --- commands ----------------------------------------------------------------------------

    def run(self, command: messages.Command) -> tuple[Any, ...]:
        """Do this rank's part of every step, and return its results, one per step.

        ``peers.begin`` must have been called for the command.
        """
        phase = self.peers.phase
        self._command = command
        try:
            return self._run_steps(command)
        except BaseException:
            # Before anything else: the others may be waiting for this rank.
            self.peers.fail()
            raise
        finally:
            phase[0] = messages.IDLE

    def _run_steps(self, command: messages.Command) -> tuple[Any, ...]:
        phase, results = self.peers.phase, []
        for step in command.steps:
            phase[0] = step.phase  # tells the other ranks what this one is doing
            results.append(step.run(self))
        return tuple(results)

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Show the phase "compiling" to the other ranks inside this context, while a program is compiled."""
        phase = self.peers.phase
        before, phase[0] = phase[0], messages.COMPILING
        try:
            yield
        finally:
            phase[0] = before

    def compile(self, step: messages.Compile) -> None:
        """Compile functions, and on cores agree with the other ranks on what runs as C."""
        for function, num_slices, graphs in step.programs:
            self._programs[function].variants.compile(num_slices, graphs)
        if self.device.xp is np:
            agree(self._exchange_outcomes)

    def _exchange_outcomes(self, outcome: Any) -> Any:
        """Return the outcomes of all ranks' compilation of C, joined, for `agree`."""
        self.peers.phase[0] = messages.COLLECTIVE
        return self.communicator.all_gather(outcome)

    def call(self, step: messages.Call) -> messages.Results | None:
        """Run a function on this rank's rows; return None if it has no rows."""
        bound = self.bound.get(step.function)
        if bound is None or bound.step is not step:
            bound = self._bind(step)
        program = bound.program
        batch = step.batch
        if batch is None:
            if not program.has_rows:
                return program.run_whole([], bound.broadcast, 1, 1, 0)
            return self._on_rows(step, bound, None)
        span = self._command if batch.start == messages.IN_COMMAND else batch
        listed = bound.indices if batch.listed else None
        if step.shares is None:
            total = span.stop - span.start
            first, last = split(total, self.n_ranks)[self.rank]
            if last > first:
                rows = bound.shards.whole(
                    step, span.start + first, span.start + last, bound.scattered, listed
                )
                if rows is not None:
                    return program.run_whole(rows, bound.broadcast, last - first, total, first)
        return self._on_rows(step, bound, SelectedRows(span.start, span.stop, listed))

    def compute(self, program: RankProgram, arguments: list[Any]) -> messages.Results:
        """Run a program that reads no rows on arrays that its step has chosen."""
        return program.run_whole([], arguments, 1, 1, 0)

    def _on_rows(
        self, step: messages.Call, bound: BoundStep, selected: SelectedRows | None
    ) -> messages.Results | None:
        """Run a function on this rank's rows of ``selected`` and of sliceable variables, in any slices."""
        program, indices = bound.program, bound.indices
        total, first, inputs, sliced = 0, 0, [], []
        if selected is not None:
            total = len(selected)
            first, _ = split(total, self.n_ranks)[self.rank]
            inputs = bound.shards.inputs(step, selected, bound.scattered, indices)
        if step.shares is not None:
            counts = [span.stop - span.start for span in step.shares]
            total, first = sum(counts), sum(counts[: self.rank])
            rows = rows_of(step.shares[self.rank], indices)
            sliced = [bound.shards.sliced(self.variables, one, rows) for one in program.spec.sliceables]
        results = program.run(
            inputs,
            bound.broadcast,
            sliced,
            total_rows=total,
            first_row=first,
            num_slices=step.num_slices,
        )
        if total == 0 and program.has_rows and self.rank > 0:
            return None  # all ranks have computed the same on empty input: rank 0's results suffice
        return results

    def _bind(self, step: messages.Call) -> BoundStep:
        """Look up the program and arrays of a step, and keep them: the next call often has the same step."""
        bound = self.bound[step.function] = self.bind(step)
        return bound

    def bind(self, step: messages.Call) -> BoundStep:
        """Look up the program and the arrays of a step."""
        program = self._programs[step.function]
        arrays = [self.segments.array(ref) for ref in step.inputs]
        n_scattered = program.spec.n_scattered
        indices = None if step.indices is None else self.segments.array(step.indices)
        shards = self._shards_for(program)
        return BoundStep(step, program, shards, arrays[:n_scattered], arrays[n_scattered:], indices)

    def _shards_for(self, program: RankProgram) -> Any:
        """Return the `Shards` from which a program reads its rows."""
        return self._shards


class BoundStep(NamedTuple):
    """A step with the program and the arrays that it refers to, looked up on this rank."""

    step: messages.Call
    program: RankProgram
    shards: Any  # `Shards`, or what has its methods
    scattered: list[Any]
    broadcast: list[Any]
    indices: Any


PREPARATIONS: dict[type, Callable[[Rank, Any, int | None], Any]] = {
    messages.Several: lambda rank, message, _: rank.prepare_all(message),
    messages.Attach: lambda rank, message, descriptor: rank.segments.attach(message, descriptor),
    messages.Detach: lambda rank, message, _: rank.detach(message),
    messages.Share: lambda rank, message, _: rank.variables.add(message),
    messages.UseStorage: lambda rank, message, _: rank.use_storage(message),
    messages.LeaveStorage: lambda rank, message, _: rank.leave_storage(message),
    messages.Unshare: lambda rank, message, _: rank.unshare(message),
    messages.Build: lambda rank, message, _: rank.build(message),
    messages.Forget: lambda rank, message, _: rank.forget(message),
    messages.DropObject: lambda rank, message, _: rank.drop_object(message),
}
