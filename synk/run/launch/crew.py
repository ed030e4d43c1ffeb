"""The workers of a run on this machine: what the master shares with them, and how they are ended.

launch -> Crew (processes, channel, shared control memory, logs of standard error) ... Crew.dismiss
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from synk.run.device import Devices
from synk.run.device.cpu import count_cores
from synk.run.launch.placement import placement
from synk.run.launch.watchdog import Watchdog
from synk.transport.commands.channel import MasterChannel
from synk.transport.commands.commons import Commons
from synk.transport.commands.deadline import Deadline
from synk.transport.commands.deaths import Deaths
from synk.transport.commands.frames import encode, give_up, send
from synk.transport.commands.interfaces import Death, Disconnected, Leaders, OnDeath, OnLate
from synk.transport.commands.mailbox import MasterPost
from synk.transport.commands.sync import Barrier, LeaderBarrier
from synk.transport.machines.tree import PlacedMachine
from synk.transport.processes.printout import Printout
from synk.transport.processes.process import REAP_SECONDS, Process, open_standard_descriptors
from synk.transport.processes.signals import hold_signals
from synk.transport.processes.stacks import Stacks
from synk.transport.processes.stderr_log import StderrLog
from synk.values import messages
from synk.values.errors import RankState
from synk.values.machine import Machine

DEATH_SECONDS = 1.0  # how long to wait for the end of a process after its socket was closed


class Worker(NamedTuple):
    """A worker as the master sees it: its process, and the master's ends of socket, log and stack file."""

    process: Process
    end: socket.socket
    log: StderrLog
    stacks: Stacks


class Crew:
    """The workers of this machine, and what the master shares with them; it implements `Workers`.

    ``n_ranks`` is the number of ranks on this machine, the master (or the leader) included.
    """

    def __init__(self, n_ranks: int, machine: Machine | None = None):
        open_standard_descriptors()
        self.n_ranks, self.machine = n_ranks, machine
        # Whether waiting ranks spin before they sleep. If ranks share cores, spinning would slow down others.
        self.spins = n_ranks <= count_cores()
        self.workers: list[Worker] = []  # from rank 1
        self._pid = os.getpid()
        with contextlib.ExitStack() as made:
            self.printout = made.enter_context(contextlib.closing(Printout()))
            self.commons = Commons(n_ranks)
            made.pop_all()
        self.show_output = self.printout.deliver if self.printout.is_used else None
        self._watchdog = Watchdog([], [], self.commons.control)

    def pids(self) -> tuple[int, ...]:
        return (self._pid, *(worker.process.pid for worker in self.workers))

    def placements(self, devices: Devices) -> list[PlacedMachine]:
        """Return a list of this machine only, with its ranks."""
        host = None if self.machine is None else self.machine.host
        return [placement(self.pids(), devices, host)]

    def process(self, rank: int) -> Process:
        return self.workers[rank - 1].process

    def death(self, rank: int) -> Death:
        process, _, log, _ = self.workers[rank - 1]
        process.wait(DEATH_SECONDS)
        log.deliver()  # print the rest of what it has written to standard error
        phase = self.commons.control.phase(rank)
        return Death(process.pid, process.cause_of_death(), phase, log.tail())

    def look(self, deadline: Deadline, late: Sequence[int]) -> None:
        self._watchdog.look(deadline, late)

    def states(self) -> tuple[RankState, ...]:
        """Return the states of this machine's ranks, in the order of their places, with stacks."""
        return self._watchdog.states()

    def open_channel(
        self, on_death: OnDeath, on_late: OnLate, elsewhere: Sequence[RankState] = ()
    ) -> MasterChannel:
        """Return the channel to the workers; ``elsewhere`` are other machines' ranks, for error messages."""
        shared = self.commons
        post = MasterPost(shared.mailboxes, shared.control, shared.bells, self.spins)
        processes = [worker.process for worker in self.workers]
        stacks = [worker.stacks for worker in self.workers]
        self._watchdog = Watchdog(processes, stacks, shared.control, elsewhere)
        ends = [worker.end for worker in self.workers]
        return MasterChannel(ends, self._deaths(on_death), post, on_late)

    def peers(self, on_death: OnDeath, on_late: OnLate, leaders: Leaders | None = None) -> Barrier:
        """Return the barrier for the rank at place 0; with ``leaders``, it also informs other machines."""
        shared = self.commons
        words = shared.control, shared.bells, 0, self.spins, self._deaths(on_death), on_late, self.machine
        return Barrier(*words) if leaders is None else LeaderBarrier(leaders, *words)

    def _deaths(self, on_death: OnDeath) -> Deaths:
        ranks = {worker.process.fileno(): rank for rank, worker in enumerate(self.workers, start=1)}
        return Deaths(ranks, on_death)

    def dismiss(self, seconds: float) -> dict[str, Process]:
        """End all workers, and free what is shared with them; return processes that have not ended, by name.

        They are asked to leave, and killed after ``seconds``; with 0 they are killed at once.
        """
        processes = [worker.process for worker in self.workers]
        try:
            if seconds:
                self._say_farewell()
                _wait(processes, seconds)
        finally:  # reached at once if a second ^C interrupts the wait
            for process in processes:
                process.signal(signal.SIGKILL)
            left = self._free()
        return left

    def _say_farewell(self) -> None:
        """Ask all workers to leave."""
        farewell = encode(messages.Close())
        for worker in self.workers:
            worker.end.setblocking(False)
            with contextlib.suppress(Disconnected, OSError):  # the worker is gone, or does not read
                send(worker.end, farewell, give_up)

    def _free(self) -> dict[str, Process]:
        """Close what is shared with the workers; return the processes that do not end in time, by name."""
        left = {}
        with hold_signals():  # after an interrupt, a descriptor could be closed twice, when it is another's
            # Shut down, as child processes of the script may hold copies of these sockets open.
            for worker in self.workers:
                with contextlib.suppress(OSError):  # the worker is gone
                    worker.end.shutdown(socket.SHUT_RDWR)
            deadline = time.monotonic() + REAP_SECONDS
            while self.workers:
                rank = len(self.workers)
                process, end, log, stacks = self.workers.pop()
                if not process.reap(max(0.0, deadline - time.monotonic())):
                    left[f"rank {rank}"] = process
                log.deliver()
                for held in (end, log, stacks):
                    held.close()
            self.printout.close()
            self.commons.close()
        return left


def _wait(processes: Sequence[Process], seconds: float) -> None:
    """Wait until all processes have ended, at most ``seconds`` in all."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))
