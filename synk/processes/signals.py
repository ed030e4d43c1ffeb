"""Signals as workers take them, and as children of the script do: those are no part of a run.

a worker, the fork server -> ignore_signals
a handler of ours, called in a process that somebody has forked of its own -> act_by_default
"""

from __future__ import annotations

import os
import signal
from typing import Any

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
    """Have a signal do to this process what it does where nobody handles it."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
