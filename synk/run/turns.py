"""Whose turn it is: one call at a time, by the process that forked.

    with Turns.take(label) -> other threads wait, calls in the middle of this one are refused

Imports ``errors`` and the standard library.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from synk.errors import SynkStateError


class Turns:
    """Who may speak to the ranks of a run.

    Parameters
    ----------
    timeout : float, optional
        Seconds for every command; by default as many as it takes.
    """

    def __init__(self, timeout: float | None = None):
        self.label: str | None = None  # what the thread that has the lock is about
        self.frame: FrameType | None = None  # the one that took the turn
        self.lock = threading.RLock()
        self.closed = False
        self._pid = os.getpid()
        self._timeout = timeout
        self._timeouts = threading.local()  # each thread's own, in place of that

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""
        if os.getpid() != self._pid:
            raise SynkStateError(
                f"{what}: this process is not the master; only the script that forked may call"
            )
        if self.closed:
            raise SynkStateError(f"{what}: its run was closed; make it anew after synk.fork()")

    def mine(self) -> bool:
        """Return whether this thread is inside a call.

        An exception of a signal handler may come in the middle of leaving: then there is a turn that nobody
        has any more, as the frame that took it is gone.
        """
        if self.label is None or not self.is_locked_here():
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame is self.frame:
                return True
            frame = frame.f_back
        return False

    def is_locked_here(self) -> bool:
        """Return whether this thread has the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]  # threading.Condition asks so, too

    def own(self) -> bool:
        """Return whether this process is the master."""
        return os.getpid() == self._pid

    def here(self) -> bool:
        """Return whether the run is open, and this process its master."""
        return not self.closed and self.own()

    # --- deadlines ---------------------------------------------------------------------------------

    @property
    def seconds(self) -> float | None:
        """Seconds that a command of this thread has."""
        return getattr(self._timeouts, "seconds", self._timeout)

    @contextmanager
    def timeout(self, seconds: float | None) -> Iterator[None]:
        """Give commands of this thread so many seconds meanwhile."""
        before = self.seconds
        self._timeouts.seconds = seconds
        try:
            yield
        finally:
            self._timeouts.seconds = before

    # --- turns -------------------------------------------------------------------------------------

    def take(self, label: str, begin: Callable[[], None], end: Callable[[], None]) -> Turn:
        """Return a context in which other threads are kept out; it takes a microsecond.

        Parameters
        ----------
        label : str
            What it is about.
        begin, end : callable
            Called when nobody else can, first of all and last of all; ``begin`` may refuse.

        Raises
        ------
        SynkStateError
            On entering, if this thread is inside another call: in a signal handler, say.
        """
        return Turn(self, label, begin, end)


class Turn:
    """A context in which one call has the run to itself.

    Written out as a class: a generator's context takes three times as long.
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
        if turns.mine():
            raise SynkStateError(
                f"{label} was called in the middle of {turns.label}, by a signal handler or finalizer"
            )
        if not turns.is_locked_here():  # as it is where a turn was left in part only
            turns.lock.acquire()
        try:
            turns.check_open(label)  # it may have been closed while this thread waited
            turns.frame = sys._getframe(1)
            turns.label = label
            self._begin()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._end()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._turns.label = self._turns.frame = None
        self._turns.lock.release()
