"""The run: everything that lives between ``fork`` and ``close``.

fork -> Session (workers, segments, shared variables, rank 0, commands) ... -> close
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, cast

from synk.arrays.data import Data
from synk.arrays.making import make_data
from synk.arrays.shared_storage import SharedStorage
from synk.arrays.shared_table import SharedTable
from synk.arrays.variables import RankVariables
from synk.collectives.read import FetchStep, ShapesStep
from synk.collectives.runner import CollectiveRunner
from synk.comm import Communicator, HostCommunicator, LoneCommunicator, ObservedCommunicator
from synk.compile.observe.profile import Profile
from synk.device import Devices
from synk.functions.graph_function import GraphFunction
from synk.functions.prepared import PreparedCommand
from synk.functions.sequence import SequenceFunction
from synk.functions.symbolic import define
from synk.memory.segments import SegmentTable, StagingBuffers
from synk.memory.shm import Segment
from synk.processes.signals import hold_signals
from synk.processes.termination import Termination
from synk.processes.watch import warn_of_survivors
from synk.rank.connection import decide
from synk.rank.worker import Rank
from synk.run.arguments import checked_timeout
from synk.run.commands import Commands
from synk.run.crew import Crew
from synk.run.fork_source import ForkSource
from synk.run.launch import launch
from synk.run.run_state import Recovery, RunState, warn_of
from synk.run.turns import Turns
from synk.transport.sync import Barrier, ControlBlock
from synk.values import messages
from synk.values.errors import SegmentLost
from synk.values.rows import check_num_slices


class Session:
    """One run; the `Owner` of its Data, functions and collectives.

    Parameters
    ----------
    devices : Devices
        Of all ranks.
    timeout : float, optional
        Seconds for every command.
    source : ForkSource
        Of the workers.
    """

    def __init__(self, devices: Devices, timeout: float | None, source: ForkSource):
        self.n_ranks = devices.n_ranks
        self.on_gpus = bool(devices.gpus)
        self._devices = devices
        self._source = source
        self._remembered: weakref.WeakValueDictionary[int, PreparedCommand] = weakref.WeakValueDictionary()
        self._turns = Turns(timeout)
        self._crew = Crew(self.n_ranks)

    def start(self) -> None:
        """Fork the workers. They inherit what is there by now, and so know that they are not the master."""
        with ExitStack() as undo:
            self._connection = decide(self._devices, os.environ)
            undo.callback(self._connection.withdraw, os.environ)
            self._launch(RunState())
            undo.callback(self._crew.dismiss, seconds=0)
            self._lead()
            undo.pop_all()

    def _launch(self, state: RunState) -> None:
        launch(self._crew, self._source, self._devices, self._connection, state)

    def _lead(self) -> None:
        self._commands = Commands(self._crew, self._turns)
        if self._crew.printout.is_used:
            self._commands.after_turn.append(lambda: self._crew.printout.deliver())
        self._device = self._devices.make(0)
        self._device.activate()
        self._variables = RankVariables(0, self._device.to_host, self._device.from_host)
        attachable = bool(self._devices.gpus) and self.n_ranks > 1
        self.segments = SegmentTable(self._commands.post, self._commands.release, attachable)
        self.staging = StagingBuffers(self.segments, self._drop_segment)
        # Values that are handed out may be as large as a data set.
        self.temporary = self._commands.temporary = StagingBuffers(self.segments)
        commands, read = self._commands, self._to_host if self._devices.gpus else None
        self.shared = SharedTable(commands.post, commands.release_later, self._variables, self.n_ranks, read)
        self.shared_storage = SharedStorage(
            self.segments,
            commands.post,
            self._variables,
            self.n_ranks,
            not self._devices.gpus,
            self._drop_home,
        )
        self.collectives = CollectiveRunner(self)
        self._recovery = Recovery(self.shared, self._variables, self.shared_storage, self.segments)
        self._rank = Rank(
            *self._connections(), self._device, self.segments, self._variables, self._connection
        )
        self._commands.lead(self._rank)
        self._termination = Termination()
        self._termination.install()
        self._profile: Profile | None = None
        self._lengths: dict[int, list[int]] = {}
        self._arena: int | None = None
        self._functions: weakref.WeakSet[GraphFunction] = weakref.WeakSet()
        self._function_numbers = itertools.count(1)

    def _connections(self) -> tuple[Communicator, ControlBlock, Barrier]:
        """Return what connects rank 0 with the workers there are."""
        control = self._crew.control
        barrier = self._crew.barrier(self._commands.on_death, self._commands.be_patient)
        if self.n_ranks == 1:
            return LoneCommunicator(), control, barrier
        return HostCommunicator(0, control, barrier, self._grow_arena), control, barrier

    def _to_host(self, value: Any) -> Any:
        """Return a value of rank 0 on the host, once what computes it is through; on any thread."""
        self._device.bind()
        return self._device.to_host(value)

    # --- what the public verbs ask for ---------------------------------------------------------------

    def is_open(self) -> bool:
        """Return whether verbs may be called, here."""
        return self._turns.here()

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""
        return self._crew.pids()

    def data(self, *args: Any, **kwargs: Any) -> Data:
        """Make a `Data`."""
        return make_data(self, *args, **kwargs)

    def function(self, *args: Any, name: str | None = None, **kwargs: Any) -> GraphFunction:
        """Make a function of a graph."""
        self.check_open("function")
        self._commands.check_usable()
        number = next(self._function_numbers)
        made = GraphFunction(self, number, define(name or f"function {number}", *args, **kwargs))
        self._functions.add(made)
        return made

    def sequence(self, items: Sequence[Any], name: str | None = None) -> SequenceFunction:
        """Make a function of several functions and collectives."""
        self.check_open("sequence")
        return SequenceFunction(self, items, name)

    def distribute(self, num_slices: int = 1) -> None:
        """Give all functions to all ranks and compile them there, at the same time."""
        num_slices = check_num_slices(num_slices)
        with self.turn("distribute"):
            functions = list(self._functions)  # held, so that no other thread's dropping takes one away
            numbers = tuple(sorted(function.ready() for function in functions))
            self.run((messages.Compile(numbers, num_slices),))

    def timeout(self, seconds: float | None) -> AbstractContextManager[None]:
        """Give commands so many seconds meanwhile."""
        return self._turns.timeout(checked_timeout(seconds))

    def keep_turn(self, label: str) -> AbstractContextManager[None]:
        """Keep other threads out from call to call of this one."""
        return self._turns.keep(label)

    def commit(self) -> None:
        """Keep the values of all shared variables, for `restart`."""
        with self.turn("commit"), self.shared.held() as identities:
            self._recovery.keep(identities, self.run((FetchStep(identities, rank=None),))[0])

    def restart(self) -> None:
        """Put new workers in the place of the present ones."""
        self._source.check_restart(self._devices)
        with self._commands.renewal("restart"), self.shared.held(), hold_signals():
            left = self._crew.dismiss(seconds=0)
            self._rank.rest()
            self._rank.part()
            missing = self._recovery.restore()
            self._lengths.clear()
            if self._arena is not None:
                self.segments.drop(self._arena)
                self._arena = None
            self._crew = Crew(self.n_ranks)
            self._launch(self._recovery.state(self._rank.builds()))
            self._commands.follow(self._crew)
            self._rank.join(*self._connections())
            self._commands.mend()
            self._drop_commands()
        warn_of_survivors(left)
        warn_of(missing)

    # --- what functions, Data and collectives ask for: see `Owner` -------------------------------------

    def own(self) -> bool:
        """Return whether this process is the master."""
        return self._turns.own()

    def check_open(self, what: str) -> None:
        self._turns.check_open(what)

    def turn(self, label: str) -> AbstractContextManager[None]:
        return self._commands.turn(label)

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        try:
            if self._profile is not None:
                return self._watched(self._profile, steps, start, stop)
            return self._commands.run(steps, start, stop)
        except SegmentLost:
            # Some rank lacks one of these. Those that come next may be attached by all.
            self._drop_commands()
            self.staging.drop_all()
            self.temporary.drop_all()
            self.shared_storage.release_all()
            raise

    def _watched(self, profile: Profile, steps: tuple[Any, ...], *rows: int) -> list[tuple[Any, ...]]:
        for number in {step.function for step in steps if isinstance(step, messages.Call)}:
            if number not in profile.programs:
                program = self._rank.program(number)
                profile.programs[number] = program.observed(profile.of(program.spec.name))
        with self._rank.running(profile.programs):
            return self._commands.run(steps, *rows)

    @contextmanager
    def profiled(self, profile: Profile) -> Iterator[None]:
        """Let ``profile`` watch the nodes of what rank 0 runs meanwhile, and its collectives."""
        rank = self._rank
        plain = rank.communicator
        rank.communicator = observed = cast(Communicator, ObservedCommunicator(plain, profile.collective))
        self._profile = profile
        try:
            yield
        finally:
            self._profile = None
            if rank.communicator is observed:  # no restart has come between
                rank.communicator = plain

    def run_alone(self, function: int, arrays: Sequence[Any]) -> list[Any]:
        self._device.bind()
        return self._rank.program(function).run_alone(arrays)

    def install(self, message: messages.Build) -> None:
        self._commands.post(message)
        self._rank.build(message)

    def forget(self, function: int) -> None:
        message = messages.Forget(function)
        self._rank.forget(message)
        self.staging.drop_owned_by(function)
        self._commands.release(message)

    def lengths(self, variables: Sequence[int]) -> list[list[int]]:
        unknown = tuple(variable for variable in variables if variable not in self._lengths)
        if unknown:
            by_rank = self.run((ShapesStep(unknown),))[0]
            for variable, shapes in zip(unknown, zip(*by_rank, strict=True), strict=True):
                self._lengths[variable] = [shape[0] for shape in shapes]
        # The master's own may have been changed by set_value since.
        return [
            [len(self._variables.value(variable)), *self._lengths[variable][1:]] for variable in variables
        ]

    def remember(self, command: PreparedCommand) -> None:
        command.keep(self.segments.array, self.shared_storage.watched)
        self._remembered[id(command)] = command

    def _drop_commands(self, refers: Callable[[PreparedCommand], bool] = lambda command: True) -> None:
        """Have calls prepared anew that refer to what is given up; safe in finalizers, at any moment."""
        for reference in self._remembered.valuerefs():
            command = reference()
            if command is not None and refers(command):
                command.drop()

    def _drop_segment(self, segment: int) -> None:
        self._drop_commands(lambda command: segment in command.segments)

    def _drop_home(self, variable: int) -> None:
        self._drop_commands(lambda command: variable in command.variables)

    def forget_lengths(self, variables: Sequence[int]) -> None:
        if self._lengths:
            for variable in variables:
                self._lengths.pop(variable, None)

    def _grow_arena(self, nbytes: int) -> Segment:
        """Make a larger arena for collectives; every rank waits for it, or for this one to fail."""
        with self._commands.growth():
            number = self.segments.allocate(nbytes)
        if self._arena is not None:
            self.segments.release(self._arena)
        self._arena = number
        return self.segments[number]

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and free all that was shared; left by an exception, it can be called again."""
        if not self.own():
            return
        with self._commands.ending("close") as seconds:
            left = self._crew.dismiss(seconds)
            self._rank.rest()
            self._rank.part()
            self._connection.withdraw(os.environ)
            self._variables.leave_device()
            self._variables.leave_storage()
            self.segments.close()
            self.shared.close()
            self._device.deactivate()
            self._termination.restore()
            self._drop_commands()
        warn_of_survivors(left)
