"""Signals: workers ignore them, and some moments of the master are not interrupted by them.

a worker, the fork server -> ignore_signals
a handler of ours, called in a process that somebody has forked of its own -> act_by_default
with hold_signals(): ... -> handlers of signals that came meanwhile
Termination.install (fork) ... SIGTERM -> SystemExit(143) in the main thread ... restore (close)
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

LATER_SECONDS = 0.001

# Terminals and schedulers send these to all processes of a job; the master decides.
IGNORED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
}

# A process that goes on after one of these computes nonsense.
FAULTS = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGABRT}


def ignore_signals() -> None:
    """Ignore what ends a job by signal, and whatever the script has a handler for; let all signals in again.

    Handlers that do nothing stand for ``SIG_IGN``, which would also hold in every program that this process
    starts: a compiler that hangs could not be ended. What the script ignores itself stays ignored.
    """
    me = os.getpid()

    def do_nothing(number: int, frame: Any) -> None:
        if os.getpid() != me:
            act_by_default(number)

    signal.set_wakeup_fd(-1)  # it leads to an event loop of the script
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number == signal.SIGCHLD or (number in FAULTS and callable(handler)):
            signal.signal(number, signal.SIG_DFL)  # children, such as compilers, are waited for
        elif callable(handler) or (number in IGNORED and handler is not signal.SIG_IGN):
            signal.signal(number, do_nothing)
            signal.siginterrupt(number, False)  # native code may not expect its calls to be cut short
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `fork_child` has blocked them


def act_by_default(number: int) -> None:
    """Let a signal do to this process what it does where nobody handles it."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


class _Waiting:
    """Stands for a handler and notes the signals that come."""

    def __init__(self, handler: Callable[..., Any], arrived: list[int]):
        self._handler = handler
        self._arrived = arrived
        self._pid = os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        if os.getpid() == self._pid:
            self._arrived.append(number)
        else:  # in a child that another thread has forked meanwhile, where nobody puts the handler back
            signal.signal(number, self._handler)
            self._handler(number, frame)


@contextmanager
def hold_signals(later: bool = False) -> Iterator[None]:
    """Keep all handlers that are written in Python from running in the body.

    What they raise would tear apart what must be done whole: a fork, whose child would go on with the script,
    or the release of what a dead worker held.

    Parameters
    ----------
    later : bool
        They do not run at its end either, but a moment after: what they raise in a finalizer is lost.
    """
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    if _in_main_thread():  # elsewhere none runs
        found = {number: signal.getsignal(number) for number in signal.valid_signals()}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number, handler in handlers.items():
            signal.signal(number, _Waiting(handler, arrived))
        yield
    finally:
        try:
            _set_all(handlers)
        except BaseException:  # one was needed while the next was not back yet
            _set_all(handlers)
            raise
        _rerun(arrived, later)


def _set_all(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _rerun(arrived: list[int], later: bool) -> None:
    """Run the handlers of what came meanwhile, each even if the one before raises."""
    if arrived:
        number = arrived.pop(0)
        try:
            if later:
                Timer(LATER_SECONDS, os.kill, (os.getpid(), number)).start()
            else:
                signal.raise_signal(number)
        finally:
            _rerun(arrived, later)


class Unwinding:
    """A handler of SIGTERM that raises SystemExit in the process that made it, and in no fork of that."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            return act_by_default(number)
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)  # as a shell tells a death by signal


class Termination:
    """A handler of SIGTERM, where the script has none of its own: it unwinds like ^C, so a run is closed."""

    def install(self) -> None:
        """Let SIGTERM raise SystemExit from now on; a second one ends the process at once."""
        # Handlers are set by main threads only.
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, Unwinding())

    def restore(self) -> None:
        """Let SIGTERM be as it was, unless the script has changed it since."""
        if _in_main_thread():
            _restore()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _restore() -> None:
    if isinstance(signal.getsignal(signal.SIGTERM), Unwinding):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# The handler compares pids for forks of C code. It cannot run while native code does, and Python forgets what
# comes to a child before it is ready, so SIGTERM waits for that.
_before_fork = threading.local()


def _block() -> None:
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _leave() -> None:
    _restore()
    _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_leave)
