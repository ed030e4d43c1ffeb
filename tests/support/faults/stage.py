"""Shared memory of referee, master and workers: the fault to inflict, and when it happened.

    injury arms -> an Op on the rank, or the referee from outside, strikes and writes the time -> verdict

The memory is anonymous and inherited, so it works whatever state the run is in.
"""

import mmap
import os
import time

MOST_RANKS = 8

# Fields of one word; those of one word per rank follow.
ACT, PLACE, STRUCK, N_FIELDS = range(4)
PIDS = N_FIELDS
COUNTDOWN = PIDS + MOST_RANKS

# Where an act strikes.
NOWHERE, COMPUTING, COMPILING = range(3)


class Stage:
    """Shared words, made before the master is forked."""

    def __init__(self):
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._words = memoryview(self._memory).cast("q")

    def enter(self, pids):
        """Write down the ranks' pids, after each fork of workers."""
        for rank in range(MOST_RANKS):
            self._words[PIDS + rank] = pids[rank] if rank < len(pids) else 0

    def arm(self, act, place, counts):
        """Arm ``act`` on each rank of ``counts``, at so many further visits of ``place``."""
        self.disarm()
        self._words[STRUCK] = 0
        self._words[ACT] = act
        for rank, count in counts.items():
            self._words[COUNTDOWN + rank] = count
        self._words[PLACE] = place  # last: from now on it may happen

    def disarm(self):
        self._words[PLACE] = NOWHERE
        for rank in range(MOST_RANKS):
            self._words[COUNTDOWN + rank] = 0

    def visit(self, place):
        """Return the act that happens here and now on this rank, or None."""
        if self._words[PLACE] != place:
            return None
        mine, words = os.getpid(), self._words
        for rank in range(MOST_RANKS):
            if words[PIDS + rank] == mine and words[COUNTDOWN + rank]:
                words[COUNTDOWN + rank] -= 1
                if not words[COUNTDOWN + rank]:
                    self.strike()
                    return words[ACT]
        return None

    def strike(self):
        """Write down that it happens now."""
        self._words[STRUCK] = time.monotonic_ns()

    def clear(self):
        """Forget the last fault."""
        self._words[STRUCK] = 0

    @property
    def struck(self):
        """The time of the fault, in seconds of the monotonic clock; 0.0 before it."""
        return self._words[STRUCK] / 1e9
