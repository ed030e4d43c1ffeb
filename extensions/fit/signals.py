"""Let signals end a training after the step that runs: ^C, and those by which a scheduler ends jobs.

a signal -> handler -> Training.interrupt -> the step ends -> callbacks end, all is saved -> SystemExit(0)
         -> Grace -> it is nearly over -> handler -> SystemExit(0) in the middle of the step
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from synk.extensions.fit.grace import Grace

# Others, sent to all processes of a job, end the workers, which have no handler for them.
STOPPING = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}


class Interruptible(Protocol):
    """An object with a method that asks it to end, such as a `Training`."""

    def interrupt(self, why: str) -> None:
        """End it after its present step."""


class StoppedBySignals:
    """A context in which signals stop a training after its step.

    ^C does so once, and raises KeyboardInterrupt the second time, unless the script handles or ignores it.
    The signals of `stop_on` do so however often they come: when the body has ended, handlers of the script
    are called, and if there was no error, SystemExit(0) is raised. A step that takes longer than `grace` is
    given up.

    Parameters
    ----------
    training : Training, or anything else that can be interrupted
    stop_on : iterable of signal
    grace : float
        Seconds from the first signal to the end of the process.
    """

    def __init__(self, training: Interruptible, stop_on: Iterable[int] = (), grace: float = 30.0):
        self._training, self._grace = training, checked_grace(grace)
        self._stop_on = checked_signals(stop_on)
        self._before: dict[int, Any] = {}  # handlers by signal
        self._arrived: list[int] = []  # of `stop_on`, each once
        self._pressed = False
        self._running: Grace | None = None
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            if self._stop_on:
                raise ValueError(
                    f"stop_on={list(self._stop_on)} needs the main thread, to which signals come"
                )
            return
        if self._stop_on:
            self._running = Grace(self._stop_on, self._grace)
        for_us = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        for number in dict.fromkeys((*self._stop_on, *[signal.SIGINT] * for_us)):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._running is not None:
            self._running.end()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in self._arrived:
            if _is_of_script(self._before[number]):
                signal.raise_signal(number)
        if self._arrived and error is None:
            raise SystemExit(0)

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:  # a process that the script has forked meanwhile
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        elif self._running is not None and number in self._stop_on:
            if self._running.is_late:
                raise SystemExit(0)
            self._arrived += [] if number in self._arrived else [number]
            self._training.interrupt(signal.Signals(number).name)
        elif self._pressed:
            raise KeyboardInterrupt
        else:
            self._pressed = True
            self._training.interrupt("interrupted")


def _is_of_script(handler: Any) -> bool:
    """Return whether the script has set a handler; Python's default and synk's own ones would raise."""
    ours = type(handler).__module__.partition(".")[0] == "synk"
    return callable(handler) and handler is not signal.default_int_handler and not ours


def checked_signals(stop_on: Any) -> tuple[int, ...]:
    """Return the signals; raise TypeError or ValueError if they are none that only the master takes."""
    if isinstance(stop_on, str) or not isinstance(stop_on, Iterable):
        raise TypeError(f"stop_on={stop_on!r} is no list of signals; pass (signal.SIGTERM, signal.SIGUSR1)")
    numbers = tuple(stop_on)
    for number in numbers:
        if isinstance(number, bool) or number not in STOPPING:
            names = ", ".join(sorted(one.name for one in STOPPING))
            raise ValueError(f"stop_on={number!r} is no signal that workers ignore; choose of {names}")
    return numbers


def checked_grace(seconds: Any) -> float:
    """Return the seconds; raise TypeError or ValueError if they are no positive number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"grace={seconds!r} is not a number of seconds")
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"grace={seconds} is no time to wait; pass the seconds before the process is killed")
    return float(seconds)
