"""The lock that lets one call at a time use the run, in the process that forked.

with Turns.take(label): one call; other threads wait, and a call inside it, in a signal handler, is refused
with Turns.keep(label): several calls of this thread; other threads and signal handlers wait
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

MESSAGE = "a message to the workers"  # the label where something is made or dropped between calls


class Turns:
    """The lock of a run, and the call that holds it.

    Commands have ``timeout`` seconds, None for any number, unless a thread has set another limit for its own.
    """

    def __init__(self, timeout: float | None = None):
        self.label: str | None = None  # the name of the call that holds the lock
        self.frame: FrameType | None = None  # the frame of the code that made this call
        self.lock = threading.RLock()
        self.is_owned = self.lock._is_owned  # type: ignore[attr-defined]  # threading.Condition uses it, too
        self.kept = False  # whether the thread that holds the lock keeps it between its calls
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
        """Return the error for the call ``what``, which was made while this thread is inside another call."""
        return SynkStateError(
            f"{what} was called in the middle of {self.label}, by a signal handler or finalizer; "
            f"set a flag there, and call {what} when {self.label} has returned"
        )

    def is_inside(self) -> bool:
        """Return whether this thread is inside a call.

        The label alone does not tell: if a signal handler raised while a call was ending, it may still be
        set. So the stack is searched for the frame that made the call.
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
        """Limit commands of this thread to ``seconds`` inside this context."""
        before = self._timeouts.seconds
        self._timeouts.seconds = seconds
        try:
            yield
        finally:
            self._timeouts.seconds = before

    def deadline(self) -> Deadline:
        """Return the deadline of the call, or of the message between calls, that begins now."""
        return Deadline(self.label or MESSAGE, self._timeouts.seconds)

    # --- turns -------------------------------------------------------------------------------------

    def take(self, label: str, begin: Callable[[], None], end: Callable[[], None]) -> Turn:
        """Return a context for one call, in which other threads wait; it may be entered again and again.

        ``begin`` is called after the lock is taken, and may raise to refuse the call; ``end`` is called
        before the lock is released. Entering the context raises SynkStateError if this thread is inside
        another call (in a signal handler, say).
        """
        return Turn(self, label, begin, end)

    @contextmanager
    def keep(self, label: str) -> Iterator[None]:
        """Hold the lock inside this context, for several calls of this thread; signal handlers wait, too.

        Entering it raises SynkStateError, as `take`.
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
    def keep_within(self, seconds: float) -> Iterator[bool]:
        """Hold the lock inside this context, if it becomes free within ``seconds``; yield whether it did."""
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
    """The time limit of commands in seconds, of which each thread has its own."""

    def __init__(self, seconds: float | None):
        self.seconds = seconds


class Turn:
    """The context that `Turns.take` returns.

    It is a class because it is entered once for each call, and a context made by a generator only once.
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
        # If the lock is owned but not kept, a signal handler raised before a former call released it.
        if turns.kept or not turns.is_owned():
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
