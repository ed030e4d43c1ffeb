"""What SIGTERM does to a script that has a run: it unwinds like ^C, so that the run is closed.

    install (fork) ... SIGTERM -> SystemExit(143) in the main thread ... restore (close)

Imports the standard library only.
"""

from __future__ import annotations

import signal
import threading
from typing import Any


class Termination:
    """A handler of SIGTERM, where the script has none of its own."""

    def __init__(self) -> None:
        self._installed = False

    def install(self) -> None:
        """Have SIGTERM raise SystemExit from now on; a second one ends the process at once."""
        # Handlers are set by main threads only.
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _unwind)
            self._installed = True

    def restore(self) -> None:
        """Let SIGTERM be as it was, unless the script has changed it since."""
        if self._installed and _in_main_thread() and signal.getsignal(signal.SIGTERM) is _unwind:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _unwind(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(128 + number)  # as a shell tells a death by signal
