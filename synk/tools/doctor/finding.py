"""Define findings, and run a check so that it ends in a finding even if it raises or hangs.

examined(check, machine) -> Finding
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import FrameType

CHECK_SECONDS = 25.0  # far more than any check takes; those that start a process have deadlines of their own


class Level(IntEnum):
    """The severity of a finding."""

    OK = 0
    NOTE = 1  # works; something to know
    WARNING = 2  # works, but slowly or not for everything
    PROBLEM = 3  # does not work


OK, NOTE, WARNING, PROBLEM = Level


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    level: Level
    subject: str  # two or three words that say what was looked at
    found: str
    remedy: str = ""  # a command or a setting; empty where there is nothing to do


def grade(subject: str, found: str, *complaints: tuple[bool, Level, str]) -> Finding:
    """Return the finding of the first complaint ``(applies, level, remedy)`` that applies, else OK."""
    for applies, level, remedy in complaints:
        if applies:
            return Finding(level, subject, found, remedy)
    return Finding(OK, subject, found)


class _Late(BaseException):
    """A check took too long; a BaseException, so that no ``except Exception`` within it catches this."""


def examined(check: Callable[..., Finding], *arguments: object, seconds: float = CHECK_SECONDS) -> Finding:
    """Return the finding of ``check``; if it raises or hangs, return a finding that says so."""
    subject = check.__name__.replace("_", " ")
    try:
        with deadline(seconds):
            return check(*arguments)
    except _Late:
        found = f"could not be checked within {seconds:g} s"
        return Finding(WARNING, subject, found, "a disk, a driver or a compiler may hang: see dmesg")
    except ImportError as error:
        found = f"not checked: {type(error).__name__}: {error}"
        return Finding(NOTE, subject, found, "see the findings on packages, then run this again")
    except Exception as error:
        found = f"could not be checked: {type(error).__name__}: {error}"
        return Finding(WARNING, subject, found, "look into it by hand, and report this line as a bug of synk")


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Return a context whose body is interrupted by `_Late` after ``seconds``; for the main thread only."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
