"""The workers of a run, as the master holds them, and how they end.

launch -> Crew (processes, channel, shared words, standard errors) ... Crew.dismiss
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from synk.device.cpu import count_cores
from synk.processes.printout import Printout
from synk.processes.signals import hold_signals
from synk.processes.stacks import Stacks
from synk.processes.stderr_log import StderrLog
from synk.processes.watch import REAP_SECONDS, Process, open_standard_descriptors
from synk.run.watchdog import Watchdog
from synk.transport.channel import MasterChannel
from synk.transport.commons import Commons
from synk.transport.frames import Disconnected, encode, send
from synk.transport.mailbox import MasterPost
from synk.transport.sync import Barrier
from synk.values import messages

CLOSE_SECONDS = 2.0  # for a worker to leave on its own
BROKEN_SECONDS = 0.5  # of a broken run: who has not answered a call will hardly answer this


class Worker(NamedTuple):
    """The master's end of one worker."""

    process: Process
    end: socket.socket
    log: StderrLog
    stacks: Stacks


class Crew:
    """The workers of a run and what the master shares with them.

    Parameters
    ----------
    n_ranks : int
        The master included.
    """

    def __init__(self, n_ranks: int):
        open_standard_descriptors()
        self.n_ranks = n_ranks
        self.spins = n_ranks <= count_cores()  # where ranks share cores, it keeps others from their work
        self.workers: list[Worker] = []  # from rank 1
        self._pid = os.getpid()
        with contextlib.ExitStack() as made:
            self.printout = made.enter_context(contextlib.closing(Printout()))
            self.commons = Commons(n_ranks)
            made.pop_all()
        self.control = self.commons.control

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""
        return (self._pid, *(worker.process.pid for worker in self.workers))

    def process(self, rank: int) -> Process:
        return self.workers[rank - 1].process

    def last_words(self, rank: int) -> str:
        """Return what a dead worker wrote to standard error at the end, after handing on what was not yet."""
        log = self.workers[rank - 1].log
        log.deliver()
        return log.tail()

    def watchdog(self) -> Watchdog:
        """Return what looks after the workers while the master waits for them."""
        return Watchdog(
            [worker.process for worker in self.workers],
            [worker.stacks for worker in self.workers],
            self.control,
        )

    def open_channel(
        self, on_death: Callable[[int], None], patience: Callable[[Sequence[int]], None]
    ) -> MasterChannel:
        """Return the master's channel to all workers."""
        post = MasterPost(self.commons.mailboxes, self.control, self.commons.bells, self.spins)
        ends = [worker.end for worker in self.workers]
        return MasterChannel(ends, [worker.process for worker in self.workers], on_death, post, patience)

    def barrier(self, on_death: Callable[[int], None], patience: Callable[[Sequence[int]], None]) -> Barrier:
        """Return the master's barrier; ``on_death`` is called with a dead worker's rank."""
        ranks = {worker.process.fileno(): rank for rank, worker in enumerate(self.workers, start=1)}
        return Barrier(
            self.control,
            self.commons.bells,
            rank=0,
            spins=self.spins,
            lives=list(ranks),
            on_death=lambda descriptor: on_death(ranks[descriptor]),
            patience=patience,
        )

    def dismiss(self, seconds: float = CLOSE_SECONDS) -> dict[str, Process]:
        """End all workers, and free what was shared.

        Parameters
        ----------
        seconds : float
            For workers to leave when asked to, then they are killed. With 0 they are killed at once.

        Returns
        -------
        dict of str to Process
            Those that have not ended for all that; see `warn_of_survivors`.
        """
        processes = [worker.process for worker in self.workers]
        try:
            if seconds:
                self._say_farewell()
                _wait(processes, seconds)
        finally:  # a second ^C comes here at once
            for process in processes:
                process.signal(signal.SIGKILL)
            left = self._free()
        return left

    def _say_farewell(self) -> None:
        farewell = encode(messages.Close())
        for worker in self.workers:
            worker.end.setblocking(False)
            with contextlib.suppress(Disconnected, OSError):  # it is gone already, or does not read
                send(worker.end, farewell, _give_up)

    def _free(self) -> dict[str, Process]:
        left = {}
        with hold_signals():  # what is closed twice may be somebody else's by then
            for worker in self.workers:  # forks of the script may hold the other ends too
                with contextlib.suppress(OSError):  # it is gone already
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


def _give_up() -> None:
    raise Disconnected


def _wait(processes: Sequence[Process], seconds: float) -> None:
    """Wait for processes to end, so long for all of them."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))
