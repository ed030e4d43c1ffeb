"""Give a process some seconds to end after a signal, its grace, and then end it.

Python runs a handler only when native code returns, and synk delays handlers while it must not be
interrupted. A thread hears of a signal at once, through `signal.set_wakeup_fd`.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from contextlib import suppress

import synk

LEAVE_SECONDS = 5.0  # of the grace, for leaving a step that does not end


class Grace:
    """A limit on the seconds from the first of some signals to the end of the process.

    Shortly before they are over, the signal is sent again, to a handler that is to raise where this
    `is_late`; when they are, the process exits with status 0, whatever it does. Made and ended by the main
    thread.
    """

    present: Grace | None = None  # in this process

    def __init__(self, numbers: tuple[int, ...], seconds: float):
        self._numbers = numbers
        self._leave = min(LEAVE_SECONDS, seconds / 2)
        self._patience = seconds - self._leave
        self._ended, self._is_over = threading.Event(), False
        self._arrivals, self._told = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._told, False)
        # By its name synk knows that it only waits, and that processes may be forked beside it.
        self._thread = threading.Thread(target=self._look, name="synk-grace", daemon=True)
        self._thread.start()
        self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        self._outer, Grace.present = Grace.present, self

    @property
    def is_late(self) -> bool:
        """Return whether the grace is nearly over, so that the main thread must stop at once."""
        return self._is_over and not self._ended.is_set()

    def end(self) -> None:
        """Stop measuring, and restore the state from before."""
        self._ended.set()
        Grace.present = self._outer
        signal.set_wakeup_fd(self._before)
        with suppress(BlockingIOError):  # so many signals have come that it is full
            os.write(self._told, bytes(1))
        self._thread.join()
        os.close(self._told)
        os.close(self._arrivals)

    def _look(self) -> None:
        number = self._first()
        if self._ended.wait(self._patience):
            return
        try:
            warnings.warn(
                f"the training did not end within {self._patience:g} s of {signal.Signals(number).name}: "
                "what runs is given up, and what was done since the last checkpoint is lost",
                synk.SynkWarning,
                stacklevel=1,
            )
        finally:  # that may be an error
            self._is_over = True
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            if not self._ended.wait(self._leave):
                os._exit(0)  # the kernel ends the workers

    def _first(self) -> int:
        """Wait for the first of the signals, and return it; 0 at the end."""
        while True:
            number = os.read(self._arrivals, 1)[0]
            if number in self._numbers or self._ended.is_set():
                return number


def _forget() -> None:
    """In a forked child, stop reporting signals, since the parent would take them for its own."""
    if Grace.present is not None:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget)
