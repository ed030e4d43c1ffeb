"""Decide how long a rank spins, looking at a word in shared memory again and again, before it sleeps.

A rank that spins goes on a microsecond after the word was written; one that sleeps must be woken up, which
takes dozens. But spinning is a waste if the others take long, and harmful if the rank that writes the word
needs the same core. Which is the case cannot be known beforehand, so each place where a rank waits has a
`Spin`, which learns from the last waits there.

    for _ in range(spin.looks): word there? -> spin.hit() if it was in doubt
    else: sleep -> spin.missed(seconds) once the word is there
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from functools import cache

SHORT_SECONDS = 200e-6  # the time that a usual wait spins: several wake-ups
LONG_SECONDS = 500e-6  # the time that a long trial spins; after that, the cost of a wake-up does not count
WAKE_SECONDS = 100e-6  # if a word comes so soon after the spin, its writer has probably waited for this core
PAUSE_SECONDS = 0.1  # a longer sleep is a pause of the script, which says nothing about the next wait
MOST_SKIPPED = 127  # most waits between two trials, while spinning keeps failing


class Spin:
    """The number of times that the next wait looks for its word before it sleeps.

    After a wait that has spun in vain, the next one sleeps at once; after the next failure three do, then
    seven, and so on. Between them a wait spins again as a trial. If even many trials fail, they become
    longer, since the others may take just a little more time. Looks are counted, as it takes too long to read
    a clock.

    Parameters
    ----------
    pays : bool
        Whether to spin at all; not if there are more ranks than cores.
    moves : bool
        Whether this rank may move to another core if the writer of the word seems to need this one.

    Attributes
    ----------
    looks : int
        The looks of the next wait; 1 if it does not spin.
    doubted : bool
        Whether the last wait that has spun had to sleep all the same.
    """

    __slots__ = ("_moves", "_pays", "_skipped", "_usual", "_waits", "doubted", "looks")

    def __init__(self, pays: bool = True, moves: bool = False):
        self._pays, self._moves = pays, moves
        self._usual = self.looks = looks_in(SHORT_SECONDS) if pays else 1
        self._skipped = 0  # waits between the last two trials
        self._waits = 0  # waits until the next trial
        self.doubted = False

    def hit(self) -> None:
        """Record that the word came while a wait was looking for it."""
        if self.looks > 1:  # else the word was there before the wait
            self._skipped -= 1
            self.doubted = self._skipped > 0

    def missed(self, seconds: float) -> None:
        """Record that a wait slept for ``seconds`` after its looks, and set the looks of the next wait."""
        if not self._pays or seconds > PAUSE_SECONDS:
            return
        if self.looks > 1:
            if self._moves and seconds < WAKE_SECONDS:
                leave_core()
            self.doubted = True
            self._waits = self._skipped = min(2 * self._skipped + 1, MOST_SKIPPED)
            self._usual = looks_in(LONG_SECONDS if self._skipped == MOST_SKIPPED else SHORT_SECONDS)
        else:
            self._waits -= 1
        self.looks = 1 if self._waits > 0 else self._usual


def looks_in(seconds: float) -> int:
    """Return the number of looks at a word that take ``seconds`` on this machine."""
    return 1 + int(seconds / seconds_a_look())


@cache
def seconds_a_look(looks: int = 1000) -> float:
    """Return the seconds that a look takes; it is measured once, before workers are forked."""
    words, least = memoryview(bytes(8)).cast("q"), float("inf")
    for _ in range(3):  # the least counts, as one measurement may be interrupted
        began = time.perf_counter()
        for _ in range(looks):
            if words[0] != 0:
                break
        least = min(least, time.perf_counter() - began)
    return least / looks


def leave_core() -> None:
    """Move this thread to another core; the kernel may move it back at any time.

    On virtual machines, kernels wake a process up on the core of the process that wakes it, even if others
    are idle, and look for a better core milliseconds later.
    """
    with suppress(OSError):  # some systems do not let a process choose its cores
        cores, here = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu()
        if here in cores and len(cores) > 1:
            try:
                os.sched_setaffinity(0, cores - {here})
            finally:
                os.sched_setaffinity(0, cores)
