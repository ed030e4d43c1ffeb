"""Check deadlines, and warn of ranks that keep the master waiting.

    while the master waits: look(deadline, late ranks), several times a second -> a warning, SynkTimeout

A call that returns in time costs nothing here except for reading the clock once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from synk.run.rank.rank import Rank
from synk.transport.commands.deadline import Deadline
from synk.transport.commands.sync import ControlBlock
from synk.transport.processes.process import Process
from synk.transport.processes.stacks import Stacks
from synk.values.errors import RankState, SynkTimeout
from synk.values.script_frames import stack_of_the_script, warn_the_script

LOOK_SECONDS = 0.25  # how often to look for ranks that a signal has stopped, which nothing else reports
WARN_SECONDS = 5.0  # how long a rank may keep the others waiting without a warning

SERVING = Rank.run.__code__.co_filename  # the file in every worker's stack, above which stacks are cut


class Watchdog:
    """Checks one command at a time; ``processes`` and ``stacks`` are those of the workers, from rank 1.

    ``elsewhere`` are the states of ranks on other machines, as far as they are known here.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        stacks: Sequence[Stacks],
        control: ControlBlock,
        elsewhere: Sequence[RankState] = (),
    ):
        self._elsewhere = {state.rank: state for state in elsewhere}
        self._processes = processes
        self._stacks = stacks
        self._control = control
        self._looked = 0.0  # the time of the last look
        self._waits_since = 0.0  # the time since which the master has been waiting

    def look(self, deadline: Deadline, late: Sequence[int]) -> None:
        """Check the deadline, and every `LOOK_SECONDS` the ranks ``late``, for which the master waits.

        Raises SynkTimeout after the deadline.
        """
        now = time.monotonic()
        if deadline.has_passed():
            raise self.timeout(deadline, late)
        if now - self._looked > 2 * LOOK_SECONDS:  # the master has not waited before
            self._waits_since = now
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            if not deadline.has_warned:
                self._warn(deadline, late, now - max(self._waits_since, deadline.began))

    def _warn(self, deadline: Deadline, late: Sequence[int], waited: float) -> None:
        """Warn once per command of late ranks that are stopped, or that others have waited for too long."""
        here = [rank for rank in late if rank not in self._elsewhere]
        stopped = [rank for rank in here if rank > 0 and self._processes[rank - 1].stopped()]
        if stopped:
            said = "stopped by a signal; SIGCONT lets it go on"
        elif waited >= WARN_SECONDS:
            said = f"keeping the others waiting for {waited:.0f} s"
        else:
            return
        deadline.has_warned = True
        states = "; ".join(f"rank {rank} ({self._state(rank)})" for rank in stopped or late)
        warn_the_script(f"{deadline.label}: {states} is {said}")

    def _state(self, rank: int) -> str:
        known = self._elsewhere.get(rank)
        if known is not None:
            return f"pid {known.pid} {known.state}"
        return f"pid {self._processes[rank - 1].pid}, {self._control.phase(rank)}"

    def timeout(self, deadline: Deadline, late: Sequence[int]) -> SynkTimeout:
        """Return the error for a command that has missed its deadline, with every rank's stack."""
        assert deadline.seconds is not None
        states = *self.states(), *self._elsewhere.values()
        return SynkTimeout(deadline.seconds, deadline.label, tuple(late), states)

    def states(self) -> tuple[RankState, ...]:
        """Return the states of this machine's ranks, in the order of their places, with their stacks."""
        workers = list(zip(self._processes, self._stacks, strict=True))
        for process, stack in workers:
            stack.ask(process)
        mine = RankState(0, os.getpid(), "running", self._control.phase(0), stack_of_the_script())
        others = (
            RankState(rank, process.pid, _state(process), self._control.phase(rank), _above(stack.read()))
            for rank, (process, stack) in enumerate(workers, start=1)
        )
        return mine, *others


def _state(process: Process) -> str:
    if process.wait(0):
        return "ended"
    return "stopped" if process.stopped() else "running"


def _above(stack: str) -> str:
    """Return the stacks of a worker's threads as text, without synk's frames, which are always the same."""
    lines, skipping = [], False
    for line in stack.splitlines():
        if not line.startswith("  "):
            skipping = False  # another thread
        skipping = skipping or SERVING in line
        if not skipping:
            lines.append(line)
    return "\n".join(lines)
