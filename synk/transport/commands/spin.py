"""Look for a word before sleeping, for as long as that pays on this machine, at this moment.

A rank that spins answers in a microsecond, one that sleeps must be woken up, which takes dozens. Spinning is
wasted where the others take long, and harmful where the one waited for needs this very core. Nothing tells
that beforehand, so each place where a rank waits learns from its last waits.

    for _ in range(spin.looks): word there? -> spin.hit() if it was in doubt
    else: sleep -> spin.missed(seconds) once the word is there
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from functools import cache

SHORT_SECONDS = 200e-6  # several wake-ups
LONG_SECONDS = 500e-6  # beyond, a wake-up does not count
WAKE_SECONDS = 100e-6  # a word that comes so soon after the looks has waited for this core
PAUSE_SECONDS = 0.1  # the script did something else: nothing follows for the next wait
MOST_SKIPPED = 127  # waits between two trials, where spinning keeps failing


class Spin:
    """The number of looks that the next wait begins with.

    A wait that looked in vain is followed by one that sleeps at once, after another failure by three, then
    seven, and so on; between them is a wait that tries. Where even many have failed, the trial is a long one:
    the others may just take a little longer. Looks are counted, not timed: a clock is a call of a function.

    It does not spin at all unless that ``pays``: not where there are more ranks than cores. All but one rank
    may go to another core where the one waited for seems to need this one: ``moves``.

    Attributes
    ----------
    looks : int
        Of the next wait; 1 where it is not to spin.
    doubted : bool
        Whether the last wait that spun slept all the same.
    """

    __slots__ = ("_moves", "_pays", "_skipped", "_usual", "_waits", "doubted", "looks")

    def __init__(self, pays: bool = True, moves: bool = False):
        self._pays, self._moves = pays, moves
        self._usual = self.looks = looks_in(SHORT_SECONDS) if pays else 1
        self._skipped = 0  # waits between the last trials
        self._waits = 0  # until the next one
        self.doubted = False

    def hit(self) -> None:
        """Note that the word came while a wait looked for it."""
        if self.looks > 1:  # else it was there already
            self._skipped -= 1
            self.doubted = self._skipped > 0

    def missed(self, seconds: float) -> None:
        """Note that a wait slept for so many seconds after its looks, and decide on the next."""
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
    """Return how many looks at a word take so long on this machine."""
    return 1 + int(seconds / seconds_a_look())


@cache
def seconds_a_look(looks: int = 1000) -> float:
    """Return the seconds that a look takes, measured once; workers inherit it."""
    words, least = memoryview(bytes(8)).cast("q"), float("inf")
    for _ in range(3):  # one may be interrupted
        began = time.perf_counter()
        for _ in range(looks):
            if words[0] != 0:
                break
        least = min(least, time.perf_counter() - began)
    return least / looks


def leave_core() -> None:
    """Let the kernel move this thread to another core, from where it may come back at any time.

    Where machines are virtual, kernels wake a process up on the core of the one that wakes it, even if others
    are idle, and look for a better place milliseconds later.
    """
    with suppress(OSError):  # some systems let nobody choose
        cores, here = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu()
        if here in cores and len(cores) > 1:
            try:
                os.sched_setaffinity(0, cores - {here})
            finally:
                os.sched_setaffinity(0, cores)
