"""Let SIGTERM unwind a script that has a run like ^C, so that the run is closed.

install (fork) ... SIGTERM -> SystemExit(143) in the main thread ... restore (close)
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from synk.processes.signals import act_by_default


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
    """A handler of SIGTERM, where the script has none of its own."""

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
