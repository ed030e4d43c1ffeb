"""The run: everything that lives between ``fork`` and ``close``, and the one global that says which.

    fork -> Session (segments, shared variables, rank 0, channel) -> run(steps) ... -> close

A command goes to all ranks in one message; the master does its own part meanwhile and then
collects one reply from each worker.

Imports floor 4 and below.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from synk import launch, messages
from synk.collectives import Collectives
from synk.comm import HostCommunicator, LoneCommunicator
from synk.data import Data, make_data
from synk.device import CpuDevice
from synk.device.cpu import count_cores
from synk.errors import SynkStateError, WorkerDied, remote_error
from synk.function import Prepared
from synk.graph_function import GraphFunction
from synk.segments import SegmentTable, StagingBuffers
from synk.sequence import SequenceFunction
from synk.shm import Segment
from synk.symbolic import define
from synk.sync import Aborted
from synk.variables import RankVariables, SharedTable
from synk.worker import Rank, failure

DEATH_SECONDS = 1.0  # between a closed socket and the end of its process


class Session:
    """One run.

    Parameters
    ----------
    n_ranks : int
        Processes that compute, this one included.
    threads : int
        Threads per rank.
    """

    def __init__(self, n_ranks: int, threads: int):
        self.n_ranks = n_ranks
        self._pid = os.getpid()
        self._lock = threading.RLock()  # threads take turns
        self._running = False
        self._posting = False
        self._label = "no command"
        self._closed = False
        self._broken: BaseException | None = None
        self._released: deque[Any] = deque()
        self._lengths: dict[int, list[int]] = {}
        self._command_numbers = itertools.count(1)
        self._function_numbers = itertools.count(1)
        self._arena: int | None = None
        self._functions: weakref.WeakSet[GraphFunction] = weakref.WeakSet()
        self._crew = launch.launch(n_ranks, lambda rank: CpuDevice(threads))
        self._device = CpuDevice(threads)
        self._device.activate()
        self._channel = self._crew.open_channel(self._on_death)
        self.segments = SegmentTable(self._post)
        self.staging = StagingBuffers(self.segments)
        variables = RankVariables(rank=0)
        self.shared = SharedTable(self._post, self.release, variables, n_ranks)
        self.collectives = Collectives(self)
        self._rank = self._make_rank(variables)

    def _make_rank(self, variables: RankVariables) -> Rank:
        barrier = self._crew.barrier(self._on_death)
        communicator = (
            LoneCommunicator()
            if self.n_ranks == 1
            else HostCommunicator(0, self._crew.control, barrier, self._grow_arena)
        )
        return Rank(communicator, self._crew.control, barrier, self._device, self.segments, variables)

    # --- what the public verbs ask for -------------------------------------------------------------

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""
        return (self._pid, *(process.pid for process in self._crew.processes))

    def data(self, *args: Any, **kwargs: Any) -> Data:
        """Make a `Data`."""
        return make_data(self, *args, **kwargs)

    def function(self, *args: Any, name: str | None = None, **kwargs: Any) -> GraphFunction:
        """Make a function of a graph."""
        self.check_open("function")
        number = next(self._function_numbers)
        made = GraphFunction(self, number, define(name or f"function {number}", *args, **kwargs))
        self._functions.add(made)
        return made

    def sequence(self, items: Sequence[Any], name: str | None = None) -> SequenceFunction:
        """Make a function of several functions and collectives."""
        self.check_open("sequence")
        if not items:
            raise TypeError("sequence() needs functions and collectives, got none")
        return SequenceFunction(self, [self._sequence_item(item) for item in items], name)

    def _sequence_item(self, item: Any) -> GraphFunction | Callable[[], Prepared]:
        if isinstance(item, GraphFunction):
            return item
        if isinstance(item, tuple) and item:
            item = partial(*item)
        verb = getattr(getattr(item, "func", None), "__name__", None)
        if isinstance(item, partial) and getattr(item.func, "is_collective", False) and verb is not None:
            prepare = partial(getattr(self.collectives, verb), *item.args, **item.keywords)
            prepare()  # what is wrong with it is said here, where it was written
            return prepare
        raise TypeError(
            "sequence() takes functions and collectives as functools.partial(synk.all_reduce, variable) "
            f"or (synk.all_reduce, variable), got {item!r}"
        )

    def distribute(self) -> None:
        """Give all functions to all ranks and compile them there, at the same time."""
        numbers = tuple(sorted(function.ready() for function in self._functions))
        self.run([messages.Compile(numbers)], "distribute")

    def collect(self, verb: str, *args: Any) -> Any:
        """Run one collective."""
        self.check_open(verb)
        return self.collectives.run(verb, getattr(self.collectives, verb)(*args))

    # --- state -----------------------------------------------------------------------------------

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""
        if os.getpid() != self._pid:
            raise SynkStateError(f"{what}: this process is not the master; only the script that forked may call")
        if self._closed:
            raise SynkStateError(f"{what}: its run was closed; make it anew after synk.fork()")

    @property
    def closed(self) -> bool:
        return self._closed

    # --- commands ----------------------------------------------------------------------------------

    def run(self, steps: Sequence[Any], label: str) -> list[list[Any]]:
        """Run steps on all ranks as one command.

        Returns
        -------
        list of list
            Results by step, then by rank.

        Raises
        ------
        RemoteError
            If ranks raised; with one rank, what it raised itself.
        WorkerDied
            If a worker died, now or in an earlier command.
        """
        self.check_open(label)
        with self._lock:
            self._check_ready(label)
            self._running, self._label = True, label
            try:
                return self._run(messages.Run(next(self._command_numbers), tuple(steps)))
            finally:
                self._running, self._label = False, "no command"
                self._flush()

    def _check_ready(self, label: str) -> None:
        if self._running:
            raise SynkStateError(f"{label} was called while {self._label} runs, from a signal handler or finalizer")
        if self._broken is not None:
            raise self._broken

    def _run(self, command: messages.Run) -> list[list[Any]]:
        self._post(command)
        mine: tuple[Any, ...] = ()
        error: BaseException | None = None
        try:
            mine = self._rank.run(command)
        except BaseException as caught:
            error = caught
        if self._broken is not None:
            raise self._broken
        replies = self._collect(error)
        self._raise_failures(error, replies)
        return [list(results) for results in zip(mine, *(reply.results for reply in replies), strict=True)]

    def _collect(self, error: BaseException | None) -> list[messages.Reply]:
        """Wait for all replies; an interrupt while waiting is raised after they have come."""
        try:
            return self._channel.collect()
        except KeyboardInterrupt as interrupt:
            if self._channel.torn or isinstance(error, KeyboardInterrupt):
                self._break(SynkStateError("the run was interrupted in the middle of a command; close() it"))
                raise
            self._rank.barrier.fail()
            self._collect(interrupt)
            raise

    def _raise_failures(self, error: BaseException | None, replies: Sequence[messages.Reply]) -> None:
        if error is not None and not isinstance(error, Exception):
            raise error
        failures = [reply.failure for reply in replies if reply.failure is not None]
        if error is not None and not isinstance(error, Aborted):
            if self.n_ranks == 1:
                raise error
            failures.insert(0, failure(0, error))
        if failures:
            raise remote_error(failures, self.n_ranks) from error
        assert error is None, "a rank aborts only because another failed"

    def run_alone(self, function: int, arrays: Sequence[Any]) -> list[Any]:
        """Run a function on rank 0 only."""
        with self._lock:
            return self._rank.program(function).run_alone(arrays)

    def install(self, message: messages.Build) -> None:
        """Give a function to all ranks; each compiles it when it first runs."""
        self._post(message)
        self._rank.build(message)

    # --- what the ranks know of shared variables -----------------------------------------------------

    def lengths(self, variables: Sequence[int]) -> list[list[int]]:
        """Return the rows of shared variables, by variable, then by rank."""
        unknown = tuple(variable for variable in variables if variable not in self._lengths)
        if unknown:
            by_rank = self.run([messages.Shapes(unknown)], "get_lengths")[0]
            for variable, shapes in zip(unknown, zip(*by_rank, strict=True), strict=True):
                self._lengths[variable] = [shape[0] for shape in shapes]
        # The master's own may have been changed by set_value since.
        return [
            [len(self._rank.variables.value(variable)), *self._lengths[variable][1:]] for variable in variables
        ]

    def forget_lengths(self, variables: Sequence[int]) -> None:
        """Note that the shapes of these variables are about to change."""
        for variable in variables:
            self._lengths.pop(variable, None)

    # --- messages ----------------------------------------------------------------------------------

    def _post(self, message: Any, descriptor: int | None = None) -> None:
        with self._lock:
            self._posting = True
            try:
                self._channel.post(message, descriptor)
            except KeyboardInterrupt:
                self._break(SynkStateError("the run was interrupted while a message was sent; close() it"))
                raise
            finally:
                self._posting = False

    def release(self, message: Any) -> None:
        """Post a message when the run is next at rest; safe in finalizers, at any moment."""
        if self._closed or os.getpid() != self._pid:
            return
        self._released.append(message)
        if self._lock.acquire(blocking=False):
            try:
                if not (self._running or self._posting):
                    self._flush()
            finally:
                self._lock.release()

    def release_segment(self, number: int) -> None:
        """Free a segment in all ranks; safe in finalizers, at any moment."""
        self.segments.drop(number)
        self.release(messages.Detach(number))

    def _flush(self) -> None:
        while self._released and not self._closed and self._broken is None:
            message = self._released.popleft()
            self._post(message)
            if isinstance(message, messages.Forget):
                self._rank.forget(message)
                self.staging.drop_owned_by(message.function)

    def _grow_arena(self, nbytes: int) -> Segment:
        """Make a larger arena for collectives; every rank waits for it."""
        try:
            number = self.segments.allocate(nbytes)
        except BaseException:
            self._post(messages.Refuse())
            raise
        if self._arena is not None:
            self.segments.release(self._arena)
        self._arena = number
        return self.segments[number]

    # --- the end -------------------------------------------------------------------------------------

    def _on_death(self, rank: int) -> Any:
        """Raise WorkerDied; let the other ranks out of whatever they wait for."""
        process = self._crew.processes[rank - 1]
        process.wait(DEATH_SECONDS)
        cause = process.cause_of_death()
        error = WorkerDied(rank, process.pid, cause, self._crew.control.phase(rank), self._label)
        self._break(error)
        raise error

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._rank.barrier.fail()

    def close(self) -> None:
        """End the workers and free all that was shared."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._channel.close()
        self._crew.dismiss()
        self.segments.close()
        self.shared.close()
        self._device.deactivate()


# --- the one permitted global ------------------------------------------------------------------------

_current: Session | None = None


def current(what: str) -> Session:
    """Return the run that is open.

    Raises
    ------
    SynkStateError
        If there is none.
    """
    if _current is None:
        raise SynkStateError(f"{what}: no run is open; call synk.fork() first")
    _current.check_open(what)
    return _current


def fork(n_parallel: int | None = None, device: str | None = None, threads: int | None = None) -> int:
    """Start a run; see `synk.fork`."""
    global _current
    if _current is not None:
        _current.check_open("fork")  # in a worker this says so
        raise SynkStateError("fork: a run is open already; synk.close() it first")
    n_ranks, n_threads = _checked_size(n_parallel, device, threads)
    _current = Session(n_ranks, n_threads)
    return n_ranks


def _checked_size(n_parallel: Any, device: Any, threads: Any) -> tuple[int, int]:
    if device not in (None, "cpu"):
        raise ValueError(f"device={device!r} is not available; this version computes on 'cpu'")
    for name, value in (("n_parallel", n_parallel), ("threads", threads)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r} is not an integer")
        if value < 1:
            raise ValueError(f"{name}={value} is less than 1")
    n_ranks = count_cores() if n_parallel is None else n_parallel
    return n_ranks, threads or max(1, count_cores() // n_ranks)


def close() -> None:
    """End the run; see `synk.close`."""
    global _current
    if _current is not None:
        session, _current = _current, None
        session.close()


atexit.register(close)
