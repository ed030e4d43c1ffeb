"""Signals: workers ignore them, and the master delays their handlers while it does what must be done whole.

a worker, the fork server -> ignore_signals
a handler of synk that runs in a process forked by other code -> act_by_default
with hold_signals(): ... -> afterwards, the handlers of the signals that came meanwhile
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

LATER_SECONDS = 0.001  # after which `hold_signals(later=True)` sends the signals again

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
    """Ignore the signals in `IGNORED` and those that the script handles; then unblock all signals.

    They get a handler that does nothing instead of ``SIG_IGN``, which every program started by this process
    would inherit: a compiler that hangs could not be ended by a signal. A signal that the script itself
    ignores stays ignored.
    """
    me = os.getpid()

    def do_nothing(number: int, frame: Any) -> None:
        if os.getpid() != me:
            act_by_default(number)

    signal.set_wakeup_fd(-1)  # the old one may belong to an event loop of the script
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number == signal.SIGCHLD or (number in FAULTS and callable(handler)):
            signal.signal(number, signal.SIG_DFL)  # this process waits for children, such as compilers
        elif callable(handler) or (number in IGNORED and handler is not signal.SIG_IGN):
            signal.signal(number, do_nothing)
            signal.siginterrupt(number, False)  # native code may not expect its calls to be cut short
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `fork_child` has blocked them


def act_by_default(number: int) -> None:
    """Give a signal its default action, and send it to this process again."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


class _Waiting:
    """A signal handler that replaces the script's own, and appends the signals that come to ``arrived``."""

    def __init__(self, handler: Callable[..., Any], arrived: list[int]):
        self._handler = handler
        self._arrived = arrived
        self._pid = os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        if os.getpid() == self._pid:
            self._arrived.append(number)
        else:  # in a child forked by another thread meanwhile, where nothing restores the handler
            signal.signal(number, self._handler)
            self._handler(number, frame)


@contextmanager
def hold_signals(later: bool = False) -> Iterator[None]:
    """Delay all signal handlers written in Python until the end of the ``with`` block.

    An exception from a handler would interrupt work that must be completed: a fork, whose child would go on
    with the script, or the release of the resources of a dead worker.

    Parameters
    ----------
    later : bool
        If true, the handlers run a moment after the end of the block. For blocks in a finalizer, in which
        Python would drop the exceptions of the handlers.
    """
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    if _in_main_thread():  # Python runs handlers in the main thread only
        found = {number: signal.getsignal(number) for number in signal.valid_signals()}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number, handler in handlers.items():
            signal.signal(number, _Waiting(handler, arrived))
        yield
    finally:
        try:
            _set_all(handlers)
        except BaseException:  # a handler that was already restored has raised
            _set_all(handlers)
            raise
        _rerun(arrived, later)


def _set_all(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _rerun(arrived: list[int], later: bool) -> None:
    """Send the noted signals to this process again, each of them even if an earlier handler raises."""
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
    """A handler of SIGTERM that raises SystemExit in the process that created it.

    In a fork of that process, SIGTERM has its default action.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            return act_by_default(number)
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)  # the exit code that shells give to a death by signal


class Termination:
    """Makes SIGTERM raise SystemExit where the script does not handle it, so that an open run is closed."""

    def install(self) -> None:
        """Let SIGTERM raise SystemExit from now on; a second SIGTERM ends the process at once."""
        # Python lets only the main thread set handlers.
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, Unwinding())

    def restore(self) -> None:
        """Give SIGTERM its default action again, unless the script has set another handler since."""
        if _in_main_thread():
            _restore()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _restore() -> None:
    if isinstance(signal.getsignal(signal.SIGTERM), Unwinding):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# After a fork by Python, the child drops the handler of SIGTERM; the handler compares pids only for forks by
# C code. Python loses signals that reach a child before it is ready, so SIGTERM is blocked around a fork.
_before_fork = threading.local()


def _block_sigterm() -> None:
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _after_in_child() -> None:
    _restore()
    _unblock_sigterm()


os.register_at_fork(before=_block_sigterm, after_in_parent=_unblock_sigterm, after_in_child=_after_in_child)
