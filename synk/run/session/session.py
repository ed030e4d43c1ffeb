"""The run: everything that lives between ``fork`` and ``close``.

fork -> Session: Commands, RunProcesses, RunMemory, Rank, FunctionTable, Recovery ... restart ... close
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from synk.exact.define import define
from synk.exact.for_ranks import definition_for_ranks, warn_of_results
from synk.run.arrays.data import Data
from synk.run.arrays.making import make_data
from synk.run.arrays.per_rank import Cause
from synk.run.arrays.run_memory import RunMemory
from synk.run.collectives.read import CommitStep, ShapesStep
from synk.run.collectives.runner import CollectiveRunner
from synk.run.collectives.sharded_update import ShardedUpdate
from synk.run.device import Devices
from synk.run.functions.graph_function import GraphFunction
from synk.run.functions.on_ranks import OnRanks
from synk.run.functions.sequence import SequenceFunction
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.recovery import Recovery, RunState, warn_of
from synk.run.on_machines.job import Jobs
from synk.run.session.commands import Commands
from synk.run.session.function_table import FunctionTable
from synk.run.session.run_processes import RunProcesses
from synk.run.session.timeline import Timeline
from synk.run.session.turns import Turns
from synk.transport.machines.tree import tree
from synk.transport.processes.process import warn_of_survivors
from synk.transport.processes.signals import Termination, hold_signals
from synk.values.checks import checked_count
from synk.values.errors import SegmentLost, SharedMemoryFull, SynkStateError


class Session:
    """One run, which makes one call at a time: the `Owner` of its Data, functions and collectives.

    It has these parts, which are made in this order. `restart` ends the processes and starts others, with
    which the other parts go on; `close` ends the processes, then frees the memory.

    ===========  ============================================================================================
    turns        let one thread call at a time, in the process that forked, and not inside another call
    commands     send commands to all ranks, do rank 0's part, collect replies; send messages in between
    processes    the workers, here and on other machines, and the CPUs of this process
    memory       what ranks share: segments, buffers, shared variables
    rank         does rank 0's part of each command: its device, programs, connections to other ranks
    functions    the record of the functions that ranks have
    collectives  run the collectives that the script calls by themselves
    recovery     keeps the last commit, and the state from which workers start after a restart
    ===========  ============================================================================================
    """

    def __init__(
        self,
        devices: Devices,
        turns: Turns,
        source: ForkSource,
        jobs: Jobs | None = None,
    ):
        self.on_host, self.on_machines = devices.on_host, jobs is not None
        self._turns = turns
        self._commands = commands = Commands(turns)
        with ExitStack() as undo:
            self._processes = processes = RunProcesses(devices, source, jobs)
            undo.callback(processes.undo)
            device = processes.device
            self.memory = memory = RunMemory(
                commands, processes.ranks, device, self.on_host, lambda read: self.run((ShapesStep(read),))[0]
            )
            commands.temporary = memory.temporary
            processes.launch(RunState(), memory.segments)
            device.activate()  # only now: workers that are forked later might not be able to use the device
            self._rank = processes.connection.rank(
                *processes.connect(commands, memory.arena), device, memory.segments, memory.variables
            )
            commands.connect(processes.workers, self._rank)
            self.functions = FunctionTable(self._rank, commands, memory, self.run)
            self.collectives = CollectiveRunner(self)
            self._recovery = Recovery(memory)
            self._timeline: Timeline | None = None  # the last one
            self._termination = Termination()
            self._termination.install()
            undo.pop_all()

    # --- what the public verbs ask for ---------------------------------------------------------------

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""
        return self._processes.workers.pids()

    def topology(self) -> str:
        """Return the text of `synk.topology`: a tree of all machines with their ranks."""
        return tree(self._processes.placements())

    def data(self, *args: Any, **kwargs: Any) -> Data:
        """Make `Data`; the arguments are those of `synk.data`."""
        return make_data(self, *args, **kwargs)

    def function(
        self, *args: Any, name: str | None = None, check: str | None = None, **kwargs: Any
    ) -> GraphFunction:
        """Make a function of a graph; the arguments are those of `synk.function`."""
        self.check_open("function")
        self._commands.check_usable()
        number = next(self.functions.numbers)
        written = define(name or f"function {number}", *args, **kwargs)
        definition = definition_for_ranks(written)
        if self.n_ranks > 1:
            warn_of_results(written)
        made = GraphFunction(self, number, written, definition, check)
        self.functions.functions.add(made)
        return made

    def sharded_update(
        self, update: Any, flat: Any, required: bool = False, name: str | None = None
    ) -> ShardedUpdate:
        """Make an update of which each rank computes a part, as `synk.sharded_update`."""
        self.check_open("sharded_update")
        with self.turn("sharded_update"):
            return ShardedUpdate(self, update, flat, required, name, self.function)

    def sequence(self, items: Sequence[Any], name: str | None = None) -> SequenceFunction:
        """Join functions and collectives to one function, as `synk.sequence`."""
        self.check_open("sequence")
        return SequenceFunction(self, items, name)

    def on_ranks(
        self, make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...], changes: Any = ()
    ) -> OnRanks[Any]:
        """Make an object on every rank, as `synk.on_ranks`."""
        self.check_open("on_ranks")
        return OnRanks(self, next(self.functions.object_numbers), make, arguments, changes)

    def per_rank_cause(self, variable: Any) -> Cause | None:
        """Return why a variable is per rank in this run; None if it is not, or the run does not use it."""
        return self.memory.per_rank.of(self.memory.shared.known(variable))

    def distribute(self, num_slices: int = 1) -> None:
        """Send all functions to all ranks, and compile them there at the same time."""
        num_slices = checked_count("num_slices", num_slices)
        with self.turn("distribute"):
            self.functions.compile_all(num_slices)

    def commit(self, values: Any = None) -> None:
        """Keep the values of all shared variables, and the script's own ``values``, for `restart`."""
        script_values = copy.deepcopy(values)
        with self.turn("commit"), self.memory.shared.held() as identities:
            kept = tuple([one for one in identities if one not in self.memory.per_rank.spent()])
            self._recovery.keep(kept, self.run((CommitStep(kept),))[0], script_values)

    def timeline(self, path: Any) -> Timeline:
        """Start recording what all ranks do, as `synk.timeline`."""
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

    # --- other workers -------------------------------------------------------------------------------

    def restart(self, n_parallel: int | None = None, hosts: Any = None) -> Any:
        """Replace the workers by new ones; return the script's own values of the last commit.

        There are as many ranks as before, or ``n_parallel``; on several machines, they are on the machines
        that are left, or on ``hosts``.
        """
        processes, memory = self._processes, self.memory
        n_ranks = processes.choose(n_parallel, hosts)
        if n_ranks != self.n_ranks or hosts is not None:
            self._recovery.check_shareable()
        processes.use_hosts(hosts)
        with self._commands.renewal("restart"), memory.shared.held(), hold_signals():
            left = processes.end(0, self._rank)
            sizes = processes.call(n_ranks, first=hosts is not None)
            if self.on_machines or sizes != memory.ranks.sizes:
                self._resize(sizes)
            missing = self._recovery.restore()
            memory.begin_anew()
            processes.launch(self._recovery.state(self._rank.builds()), memory.segments)
            self._rank.join(*processes.connect(self._commands, memory.arena))
            self._commands.connect(processes.workers, self._rank)
            self.functions.note_new_workers()
        if self._timeline is not None:
            self._timeline.resume()
        warn_of_survivors(left)
        warn_of(missing)
        return self._recovery.script_values

    def _resize(self, sizes: tuple[int, ...]) -> None:
        """Change the number of ranks on each machine; functions work with any number of ranks, so they stay.

        Raises SynkStateError if the total changes but the commit has arrays of which each rank has its own;
        the processes that were started on other machines are ended then.
        """
        before, n_ranks = self.n_ranks, sum(sizes)
        if n_ranks != before:
            try:
                self._recovery.check_shareable()
            except BaseException:
                self._processes.give_up()
                raise
            self._recovery.redistribute(n_ranks)
        self.memory.leave_storage()
        self._processes.resize(sizes)
        self.memory.shared.adopt_all()
        if before == 1 < n_ranks:
            # One rank had programs without collectives; several need the programs in which they meet.
            for function in list(self.functions.functions):
                function.begin_anew()
                warn_of_results(function.written)

    # --- what functions, Data and collectives ask for: see `Owner` -------------------------------------

    @property
    def n_ranks(self) -> int:
        return self.memory.ranks.n_ranks

    def check_open(self, what: str) -> None:
        self._turns.check_open(what)

    def turn(self, label: str) -> AbstractContextManager[None]:
        return self._commands.turn(label)

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        try:
            profile = self.functions.profile
            if profile is None:
                return self._commands.run(steps, start, stop)
            with self.functions.observed(steps, profile):
                return self._commands.run(steps, start, stop)
        except (SegmentLost, SharedMemoryFull):  # the latter of another machine
            self.memory.drop_shared()
            raise

    def check_imported(self, modules: Collection[str], also_indirectly: bool = False) -> None:
        self._processes.check_imported(modules, also_indirectly)

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and free all shared memory; after an exception, it can be called again."""
        if not self._turns.is_master():
            return
        with ExitStack() as last:
            last.callback(self._close)
            if self._timeline is not None:
                self._timeline.end_with_run()

    def _close(self) -> None:
        with self._commands.ending("close") as seconds:
            left = self._processes.end(seconds, self._rank)
            self._processes.withdraw()
            self.memory.close()
            self._rank.device.deactivate()
            self._termination.restore()
        warn_of_survivors(left)
