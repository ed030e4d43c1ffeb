"""Barriers and channels of ranks that are no processes, with nothing to watch over unless a test says so."""

import threading
import time

from synk.transport.commands.channel import MasterChannel, WorkerChannel
from synk.transport.commands.commons import Commons
from synk.transport.commands.deaths import Deaths
from synk.transport.commands.frames import pair
from synk.transport.commands.mailbox import MasterPost, WorkerPost
from synk.transport.commands.sync import Barrier

DEADLINE = 30.0  # seconds for threads that would wait forever if they were left waiting


def nothing(*_):
    """Do nothing, in place of the functions that are called at a death or a delay."""


def make_barrier(control, bells, rank, spins=False, lives=(), on_death=nothing, on_late=nothing):
    """Return the barrier of a rank."""
    deaths = Deaths({life: life for life in lives}, on_death)  # told by descriptor
    return Barrier(control, bells, rank, spins, deaths, on_late)


class Channels:
    """A master's channel and those of its workers, on socket pairs and mailboxes.

    Parameters
    ----------
    processes : sequence
        Of the workers; anything with a descriptor that becomes readable at the end.
    on_death, on_late : callable
    spins : bool
    """

    def __init__(self, processes, on_death, on_late=nothing, spins=False):
        self.commons = shared = Commons(1 + len(processes))
        self.ends = [pair() for _ in processes]
        self.workers = [
            WorkerChannel(theirs, WorkerPost(rank, shared.mailboxes, shared.control, shared.bells, spins))
            for rank, (_, theirs) in enumerate(self.ends, start=1)
        ]
        post = MasterPost(shared.mailboxes, shared.control, shared.bells, spins)
        ranks = {process.fileno(): rank for rank, process in enumerate(processes, start=1)}
        ends = [ours for ours, _ in self.ends]
        self.master = MasterChannel(ends, Deaths(ranks, on_death), post, on_late)

    def close(self):
        self.master.close()
        for end in (end for ends in self.ends for end in ends):
            end.close()
        self.commons.close()


def on_threads(n_ranks, work):
    """Run ``work(rank)`` on one thread a rank; return what each returned or raised, in rank order."""
    outcomes = [None] * n_ranks

    def run(rank):
        try:
            outcomes[rank] = work(rank)
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n_ranks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + DEADLINE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    assert not late, f"ranks {late} still wait"
    return outcomes
