"""Run one check so that it ends, and ends in a finding, whatever happens in it.

examined(check, machine) -> Finding
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from synk.doctor.finding import Finding, Level

CHECK_SECONDS = 25.0  # far more than any check takes; those that start a process have deadlines of their own


class _Late(BaseException):
    """A check took too long; nothing that it calls takes this for an error of its own."""


def examined(check: Callable[..., Finding], *arguments: object, seconds: float = CHECK_SECONDS) -> Finding:
    """Return what ``check`` finds; where it fails or hangs, that is the finding."""
    subject = check.__name__.replace("_", " ")
    try:
        with deadline(seconds):
            return check(*arguments)
    except _Late:
        found = f"could not be checked within {seconds:g} s"
        return Finding(Level.WARNING, subject, found, "a disk, a driver or a compiler may hang: see dmesg")
    except ImportError as error:
        found = f"not checked: {type(error).__name__}: {error}"
        return Finding(Level.NOTE, subject, found, "see the findings on packages, then run this again")
    except Exception as error:
        found = f"could not be checked: {type(error).__name__}: {error}"
        return Finding(
            Level.WARNING, subject, found, "look into it by hand, and report this line as a bug of synk"
        )


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `_Late` in the body after so many seconds; in the main thread only."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
