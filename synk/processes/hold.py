"""Let signals wait for a moment.

Python runs a signal's handler between any two lines. What it raises would tear apart what must be done
whole: a fork, whose child would go on with the script, or the release of what a dead worker held.

    with hold(): ... -> handlers of signals that came meanwhile
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


class Waiting:
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


class Held:
    """Handlers that wait."""

    def __init__(self) -> None:
        self._arrived: list[int] = []
        self._handlers: dict[int, Callable[..., Any]] = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere none runs
            found = {number: signal.getsignal(number) for number in signal.valid_signals()}
            self._handlers = {number: handler for number, handler in found.items() if callable(handler)}

    def begin(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, Waiting(handler, self._arrived))

    def release(self) -> None:
        """Put the handlers back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def rerun(self, later: bool) -> None:
        """Run the handlers of what came meanwhile, each even if the one before raises."""
        if self._arrived:
            number = self._arrived.pop(0)
            try:
                if later:
                    Timer(LATER_SECONDS, os.kill, (os.getpid(), number)).start()
                else:
                    signal.raise_signal(number)
            finally:
                self.rerun(later)


@contextmanager
def hold(later: bool = False) -> Iterator[Held]:
    """Keep all handlers that are written in Python from running in the body.

    Parameters
    ----------
    later : bool
        They do not run at its end either, but a moment after: what they raise in a finalizer is lost.
    """
    held = Held()
    try:
        held.begin()
        yield held
    finally:
        try:
            held.release()
        except BaseException:  # one was needed while the next was not back yet
            held.release()
            raise
        held.rerun(later)
