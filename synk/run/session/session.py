"""The run: everything that lives between ``fork`` and ``close``.

fork -> Session (workers, segments, shared variables, rank 0, commands) ... -> close
"""

from __future__ import annotations

import copy
import itertools
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, cast

from synk.compile.observe.profile import Profile
from synk.exact.definition import define
from synk.exact.undeclared import computed, warn_of_results
from synk.run.arrays.data import Data
from synk.run.arrays.lengths import RowsByRank
from synk.run.arrays.making import make_data
from synk.run.arrays.per_rank import PerRank, Since
from synk.run.arrays.shared_storage import SharedStorage
from synk.run.arrays.shared_table import SharedTable
from synk.run.arrays.variables import RankVariables
from synk.run.collectives.read import CommitStep, ShapesStep
from synk.run.collectives.runner import CollectiveRunner
from synk.run.device import Devices
from synk.run.functions.graph_function import GraphFunction
from synk.run.functions.on_ranks import OnRanks
from synk.run.functions.prepared import PreparedCommand
from synk.run.functions.sequence import SequenceFunction
from synk.run.launch.arena import Arena
from synk.run.launch.fork_arguments import checked_ranks, refuse_hosts
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.placement import Binding
from synk.run.launch.run_state import Recovery, RunState, warn_of
from synk.run.launch.start_workers import launch
from synk.run.on_machines.job import Job, Jobs
from synk.run.on_machines.machines import launch_on_machines
from synk.run.rank.connection import decide
from synk.run.session.commands import Commands
from synk.run.session.remembered import RememberedCommands
from synk.run.session.timeline import Timeline
from synk.run.session.turns import Turns
from synk.transport.comm import Communicator, ObservedCommunicator
from synk.transport.commands.interfaces import Peers
from synk.transport.machines.tree import tree
from synk.transport.memory.segments import SegmentTable, StagingBuffers
from synk.transport.processes.process import warn_of_survivors
from synk.transport.processes.signals import Termination, hold_signals
from synk.values import messages
from synk.values.errors import SegmentLost, SharedMemoryFull, SynkStateError
from synk.values.rows import check_num_slices


class Session:
    """One run, of one call at a time; the `Owner` of its Data, functions and collectives."""

    def __init__(
        self,
        devices: Devices,
        turns: Turns,
        source: ForkSource,
        undeclared: str = "exact",
        jobs: Jobs | None = None,
    ):
        self._undeclared = undeclared  # as of `synk.fork`
        self.on_gpus = on_gpus = bool(devices.gpus)
        self.on_machines = jobs is not None
        self._devices, self._turns, self._source = devices, turns, source
        self._forked = devices  # those of all ranks that `fork` has made; there may be fewer meanwhile
        self._connection = decide(devices, os.environ)
        self._termination = Termination()
        with ExitStack() as undo:
            undo.callback(self._connection.withdraw, os.environ)
            self.segments = segments = SegmentTable(
                self._post, self._release, on_gpus and devices.n_ranks > 1
            )
            self._jobs = jobs
            job = None if jobs is None else jobs.call()
            if job is not None:
                self._devices = devices = devices.with_ranks(job.sizes[0])
            self._workers = self._launch(RunState(), job)
            undo.callback(self._workers.dismiss, seconds=0)
            self.n_ranks = self._workers.n_ranks
            self._commands = commands = Commands(self._workers, turns)
            self._binding = Binding(devices, 0)
            undo.callback(self._binding.release)
            self._device = device = devices.make(0)
            device.activate()
            self._variables = own = RankVariables(0, device.to_host, device.from_host)

            # Shared memory, and what is in it.
            self._arena = Arena(segments, commands.growth)
            self._remembered = remembered = RememberedCommands()
            self.staging = StagingBuffers(segments, remembered.drop_segment)
            # Values that are handed out may be as large as a data set.
            self.temporary = commands.temporary = StagingBuffers(segments)
            read = self._to_host if on_gpus else None
            self.per_rank = per_rank = PerRank(own, self.n_ranks)
            self.shared = SharedTable(
                commands.post, commands.release_later, per_rank, own, self.n_ranks, read
            )
            self.shared_storage = SharedStorage(
                segments,
                commands.post,
                own,
                (self.n_ranks,) if job is None else job.sizes,
                not on_gpus,
                remembered.drop_variable,
            )
            self.lengths = RowsByRank(own, lambda unknown: self.run((ShapesStep(unknown),))[0])
            self._recovery = Recovery(self.shared, own, self.shared_storage, segments, per_rank)

            # What computes.
            self._rank = self._connection.rank(*self._connected(), device, segments, own)
            commands.use_rank(self._rank)
            self.collectives = CollectiveRunner(self)
            self._functions: weakref.WeakSet[GraphFunction] = weakref.WeakSet()
            self._compiled: set[tuple[int, bool]] = set()  # functions by number, and whether in slices
            self._function_numbers = itertools.count(1)
            self._object_numbers = itertools.count(1)
            self._profile: Profile | None = None
            self._timeline: Timeline | None = None  # the last one
            self._termination.install()
            undo.pop_all()

    def _launch(self, state: RunState, job: Job | None) -> Any:
        """Start the workers, on all machines of a job if there is one."""
        if job is None:
            return launch(self._source, self._devices, self._connection, state)
        return launch_on_machines(job, self._source, self._devices, self._connection, state, self.segments)

    def _post(self, message: Any, descriptor: int | None = None) -> None:
        self._commands.post(message, descriptor)

    def _release(self, message: Any) -> None:
        self._commands.release(message)

    def _connected(self) -> tuple[Peers, Communicator]:
        """Connect rank 0 with the workers there are."""
        peers = self._workers.peers(self._commands.on_death, self._commands.on_late)
        return peers, self._connection.communicator(peers, self._device, self._arena.grow)

    def _to_host(self, value: Any) -> Any:
        """Return a value of rank 0 on the host, once what computes it is through; on any thread."""
        self._device.bind()
        return self._device.to_host(value)

    # --- what the public verbs ask for ---------------------------------------------------------------

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""
        return self._workers.pids()

    def topology(self) -> str:
        """Return the tree of all machines with their ranks."""
        return tree(self._workers.placements(self._devices))

    def data(self, *args: Any, **kwargs: Any) -> Data:
        """Make a `Data`."""
        return make_data(self, *args, **kwargs)

    def function(
        self, *args: Any, name: str | None = None, check: str | None = None, **kwargs: Any
    ) -> GraphFunction:
        """Make a function of a graph."""
        self.check_open("function")
        self._commands.check_usable()
        number = next(self._function_numbers)
        written = define(name or f"function {number}", *args, **kwargs)
        definition = computed(written, self._undeclared)
        if self.n_ranks > 1:
            warn_of_results(written, self._undeclared)
        made = GraphFunction(self, number, written, definition, check)
        self._functions.add(made)
        return made

    def sequence(self, items: Sequence[Any], name: str | None = None) -> SequenceFunction:
        """Make a function of several functions and collectives."""
        self.check_open("sequence")
        return SequenceFunction(self, items, name)

    def on_ranks(self, make: Callable[..., Any], arguments: tuple[Any, ...], changes: Any = ()) -> OnRanks:
        """Make an object on every rank."""
        self.check_open("on_ranks")
        return OnRanks(self, next(self._object_numbers), make, arguments, changes)

    def per_rank_since(self, variable: Any) -> Since | None:
        """Return the cause that has made a variable per rank in this run, if it takes part in it."""
        return self.per_rank.of(self.shared.known(variable))

    def distribute(self, num_slices: int = 1) -> None:
        """Give all functions to all ranks and compile them there, at the same time."""
        num_slices = check_num_slices(num_slices)
        with self.turn("distribute"):
            functions = list(self._functions)  # held, so that no other thread's dropping takes one away
            numbers = tuple(sorted(function.ready() for function in functions))
            self._compile([(number, n) for n in sorted({1, num_slices}) for number in numbers])

    def commit(self, values: Any = None) -> None:
        """Keep the values of all shared variables, and those that are given, for `restart`."""
        beside = copy.deepcopy(values)
        with self.turn("commit"), self.shared.held() as identities:
            self._recovery.keep(identities, self.run((CommitStep(identities),))[0], beside)

    def timeline(self, path: Any) -> Timeline:
        """Record what all ranks do, from now on."""
        if self._timeline is not None and self._timeline.is_open:
            raise SynkStateError(f"timeline: {self._timeline.path!r} is being recorded; close it first")
        if self.on_machines:
            raise NotImplementedError(
                "timeline: the clocks of several machines differ; record on one machine"
            )
        made = Timeline(self, self._rank, self._commands, self._turns, path)
        made.resume()
        self._timeline = made
        return made

    def restart(self, n_parallel: int | None = None, hosts: Any = None) -> Any:
        """Put new workers in the place of the present ones; return what was committed beside.

        They are as many as were, or so many; on several machines, those of the machines that are left, or of
        others.
        """
        n_ranks = checked_ranks(n_parallel, self.n_ranks, self._forked)
        if self._jobs is None:
            refuse_hosts(hosts)
        elif n_parallel is not None:
            raise SynkStateError('restart: n_parallel is for one machine; on several, say hosts="h1:2,h2:1"')
        self._source.check_restart(self._devices)
        if n_ranks != self.n_ranks or hosts is not None:
            self._recovery.check_shareable()
        if self._jobs is not None and hosts is not None:
            self._jobs.use(hosts)
        with self._commands.renewal("restart"), self.shared.held(), hold_signals():
            left = self._workers.dismiss(seconds=0)
            self._rank.end_threads()
            self._rank.disconnect()
            self._binding.release()  # workers start where this process is
            job = self._next_job(hosts)
            sizes = (n_ranks,) if job is None else job.sizes
            if job is not None or sum(sizes) != self.n_ranks:
                self._resize(sizes, job)
            missing = self._recovery.restore()
            self.lengths.clear()
            self._arena.drop()
            state = self._recovery.state(self._rank.builds())
            self._workers = self._launch(state, job)
            self._binding = Binding(self._devices, 0)
            self._commands.use_workers(self._workers)
            self._rank.join(*self._connected())
            self._commands.note_usable()
            self._remembered.drop_all()
            self._compiled.clear()
        if self._timeline is not None:
            self._timeline.resume()
        warn_of_survivors(left)
        warn_of(missing)
        return self._recovery.beside

    def _next_job(self, hosts: Any) -> Job | None:
        """Return the job of the machines that are left, or of others; None where there is only this one."""
        if self._jobs is None:
            return None
        return self._jobs.call() if hosts is not None else self._jobs.call_left(self._workers.lost_hosts())

    def _resize(self, sizes: Sequence[int], job: Job | None) -> None:
        """Go on with so many ranks on each machine; functions stay, since in them any number exchange.

        Raises SynkStateError if ranks have arrays of their own and become more or fewer; the job ends then.
        """
        n_ranks = sum(sizes)
        if n_ranks != self.n_ranks:
            try:
                self._recovery.check_shareable()
            except BaseException:
                if job is not None:
                    job.give_up()
                raise
            self._recovery.deal(n_ranks)
        self._variables.leave_storage()
        self.shared_storage.release_all()
        self.shared_storage.use_sizes(sizes)
        self._devices = self._forked.with_ranks(sizes[0])
        were_alone = self.n_ranks == 1
        self.n_ranks = self.per_rank.n_ranks = n_ranks
        self.shared.use_ranks(n_ranks)
        if were_alone and n_ranks > 1:
            self._meet()

    def _meet(self) -> None:
        """Let functions that one rank had alone be those of several, which meet in them."""
        for function in list(self._functions):
            function.begin_anew()
            warn_of_results(function.written, self._undeclared)

    # --- what functions, Data and collectives ask for: see `Owner` -------------------------------------

    def check_open(self, what: str) -> None:
        self._turns.check_open(what)

    def turn(self, label: str) -> AbstractContextManager[None]:
        return self._commands.turn(label)

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        try:
            if self._profile is not None:
                return self._watched(self._profile, steps, start, stop)
            return self._commands.run(steps, start, stop)
        except (SegmentLost, SharedMemoryFull):  # the latter of another machine
            # Some rank lacks one of these. Those that come next may be attached by all.
            self._remembered.drop_all()
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
        return list(self._rank.program(function).alone(arrays)())

    def check_imported(self, modules: Collection[str], also_indirectly: bool = False) -> None:
        if self.n_ranks > 1:
            self._source.imported.check(modules, also_indirectly)

    def install(self, message: messages.Build) -> None:
        self._compiled -= {(message.function, False), (message.function, True)}
        self._commands.post(message)
        self._rank.build(message)

    def compile(self, programs: Sequence[tuple[int, int]]) -> None:
        missing = [one for one in programs if (one[0], one[1] > 1) not in self._compiled]
        if missing and not self.on_gpus:
            self._compile(missing)

    def _compile(self, programs: Sequence[tuple[int, int]]) -> None:
        self.run((messages.Compile(tuple(programs)),))
        self._compiled.update((function, num_slices > 1) for function, num_slices in programs)

    def forget(self, function: int) -> None:
        self._compiled -= {(function, False), (function, True)}
        message = messages.Forget(function)
        self._rank.forget(message)
        self.staging.drop_owned_by(function)
        self._commands.release(message)

    def drop_object(self, number: int) -> None:
        message = messages.DropObject(number)
        self._rank.drop_object(message)
        self._commands.release(message)

    def remember(self, command: PreparedCommand) -> None:
        command.keep(self.segments.array, self.shared_storage.watched)
        self._remembered.add(command)

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and free all that was shared; left by an exception, it can be called again."""
        if not self._turns.is_master():
            return
        with ExitStack() as last:
            last.callback(self._close)
            if self._timeline is not None:
                self._timeline.end_with_run()

    def _close(self) -> None:
        with self._commands.ending("close") as seconds:
            left = self._workers.dismiss(seconds)
            self._rank.end_threads()
            self._rank.disconnect()
            self._connection.withdraw(os.environ)
            self._variables.leave_device()
            self._variables.leave_storage()
            self.segments.close()
            self.shared.close(self.per_rank.now)
            self._device.deactivate()
            self._binding.release()
            self._termination.restore()
            self._remembered.drop_all()
        warn_of_survivors(left)
