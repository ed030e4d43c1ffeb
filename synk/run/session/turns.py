"""Let one call at a time have the run, by the process that forked.

with Turns.take(label) -> other threads wait, calls in the middle of this one are refused
with Turns.keep(label) -> other threads and signal handlers wait, calls of this thread go on
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import _getframe
from types import FrameType

from synk.transport.commands.deadline import Deadline
from synk.transport.processes.signals import hold_signals
from synk.values.errors import SynkStateError

MESSAGE = "a message to the workers"  # where something is made or dropped between calls


class Turns:
    """The lock of a run, and the call that has it.

    Commands have ``timeout`` seconds, or as many as they take, where a thread has not set others.
    """

    def __init__(self, timeout: float | None = None):
        self.label: str | None = None  # the call of the thread that has the lock
        self.frame: FrameType | None = None  # of the code that made this call
        self.lock = threading.RLock()
        self.is_owned = self.lock._is_owned  # type: ignore[attr-defined]  # threading.Condition asks so, too
        self.kept = False  # the thread that has the lock keeps it from call to call
        self.closed = False
        self.pid = os.getpid()
        self._timeouts = Timeouts(timeout)

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""
        if os.getpid() != self.pid:
            raise SynkStateError(
                f"{what}: this process is not the master; only the script that forked may call"
            )
        if self.closed:
            raise SynkStateError(f"{what}: its run was closed; make it anew after synk.fork()")

    def refusal(self, what: str) -> SynkStateError:
        """Return the error of a call where this thread is inside another one."""
        return SynkStateError(
            f"{what} was called in the middle of {self.label}, by a signal handler or finalizer; "
            f"set a flag there, and call {what} when {self.label} has returned"
        )

    def is_inside(self) -> bool:
        """Return whether this thread is inside a call.

        Where a signal handler has raised while a call was ending, its label may have stayed; the frame that
        took the turn is not on the stack any more then, so this thread is outside.
        """
        if self.label is None or not self.is_owned():
            return False
        frame: FrameType | None = _getframe(1)
        while frame is not None:
            if frame is self.frame:
                return True
            frame = frame.f_back
        return False

    def is_master(self) -> bool:
        """Return whether this process is the master."""
        return os.getpid() == self.pid

    def is_open(self) -> bool:
        """Return whether the run is open, and this process its master."""
        return not self.closed and self.is_master()

    # --- deadlines ---------------------------------------------------------------------------------

    @contextmanager
    def timeout(self, seconds: float | None) -> Iterator[None]:
        """Give commands of this thread so many seconds meanwhile."""
        before = self._timeouts.seconds
        self._timeouts.seconds = seconds
        try:
            yield
        finally:
            self._timeouts.seconds = before

    def deadline(self) -> Deadline:
        """Return the deadline of what begins now: the call that has the run, or a message between calls."""
        return Deadline(self.label or MESSAGE, self._timeouts.seconds)

    # --- turns -------------------------------------------------------------------------------------

    def take(self, label: str, begin: Callable[[], None], end: Callable[[], None]) -> Turn:
        """Return a context in which other threads are kept out; it may be entered again and again.

        ``begin`` and ``end`` are called when nobody else can, first of all and last of all; ``begin`` may
        refuse. On entering it raises SynkStateError if this thread is inside another call: in a signal
        handler, say.
        """
        return Turn(self, label, begin, end)

    @contextmanager
    def keep(self, label: str) -> Iterator[None]:
        """Keep other threads and handlers of signals out of the body, in which this thread may call.

        On entering it raises SynkStateError, as `take`.
        """
        self.check_open(label)
        if self.is_inside():
            raise self.refusal(label)
        with self.lock, hold_signals():
            self.check_open(label)  # it may have been closed while this thread waited
            before, self.kept = self.kept, True
            try:
                yield
            finally:
                self.kept = before

    @contextmanager
    def patiently(self, seconds: float) -> Iterator[bool]:
        """Keep other threads out of the body if they leave in so many seconds; yield whether they did."""
        alone = self.lock.acquire(timeout=seconds)
        before = self.kept
        try:
            self.kept |= alone
            yield alone
        finally:
            if alone:
                self.kept = before
                self.lock.release()


class Timeouts(threading.local):
    """Seconds that a command has, which each thread may set for its own commands."""

    def __init__(self, seconds: float | None):
        self.seconds = seconds


class Turn:
    """A context in which one call has the run to itself.

    It can be entered again and again. A class, since a generator's context can be entered once only.
    """

    __slots__ = ("_begin", "_end", "_label", "_turns")

    def __init__(self, turns: Turns, label: str, begin: Callable[[], None], end: Callable[[], None]):
        self._turns = turns
        self._label = label
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        turns, label = self._turns, self._label
        turns.check_open(label)
        if turns.is_inside():
            raise turns.refusal(label)
        if turns.kept or not turns.is_owned():  # it is owned where an exception came before the release
            turns.lock.acquire()
        try:
            if turns.closed:  # while this thread waited
                turns.check_open(label)
            turns.frame = _getframe(1)
            turns.label = label
            self._begin()
        except BaseException:
            turns.label = turns.frame = None
            turns.lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._end()
        finally:
            turns = self._turns
            turns.label = turns.frame = None
            turns.lock.release()
