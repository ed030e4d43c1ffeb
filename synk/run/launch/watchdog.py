"""Watch over deadlines, and over ranks that keep the master waiting, while it waits.

    look(deadline, late ranks), every now and then -> a warning, SynkTimeout

A call that goes well pays for nothing here but a look at the clock when it starts.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence

from synk.run.rank.rank import Rank
from synk.transport.commands.deadline import Deadline
from synk.transport.commands.sync import ControlBlock
from synk.transport.processes.process import Process
from synk.transport.processes.stacks import Stacks
from synk.values.errors import RankState, SynkTimeout, SynkWarning
from synk.values.script_frames import stack_of_the_script, stacklevel

LOOK_SECONDS = 0.25  # between looks for ranks that a signal has stopped: nothing wakes the master up then
WARN_SECONDS = 5.0  # for which a rank may keep the others waiting

SERVING = Rank.run.__code__.co_filename  # through it every command reaches the program


class Watchdog:
    """Watches over one command at a time, of workers in rank order from rank 1.

    ``elsewhere`` are ranks on other machines, of which no more is known.
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
        self._looked = 0.0  # when, the last time
        self._waits_since = 0.0  # since when the master has done nothing but wait

    def look(self, deadline: Deadline, late: Sequence[int]) -> None:
        """Look at the ranks that the master waits for in this command, unless that was just now.

        Raises SynkTimeout if the command is past its deadline.
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
        warnings.warn(f"{deadline.label}: {states} is {said}", SynkWarning, stacklevel=stacklevel())

    def _state(self, rank: int) -> str:
        known = self._elsewhere.get(rank)
        if known is not None:
            return f"pid {known.pid} {known.state}"
        return f"pid {self._processes[rank - 1].pid}, {self._control.phase(rank)}"

    def timeout(self, deadline: Deadline, late: Sequence[int]) -> SynkTimeout:
        """Return the error of a command that is past its deadline, with every rank's stack."""
        assert deadline.seconds is not None
        states = *self.states(), *self._elsewhere.values()
        return SynkTimeout(deadline.seconds, deadline.label, tuple(late), states)

    def states(self) -> tuple[RankState, ...]:
        """Return the states of the ranks of this machine, by their places."""
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
    """Return a stack without the frames through which every command reaches the program."""
    lines, skipping = [], False
    for line in stack.splitlines():
        if not line.startswith("  "):
            skipping = False  # another thread
        skipping = skipping or SERVING in line
        if not skipping:
            lines.append(line)
    return "\n".join(lines)
