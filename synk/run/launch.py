"""Start the workers.

launch -> fork, one by one -> Crew (master), live (worker)
       -> ForkServer.fork, one by one, and post_birth -> Crew (master), arrive (worker)
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from socket import socket

from synk.device import Device
from synk.processes.fork_server import ForkServer
from synk.processes.hold import hold
from synk.processes.stacks import Stacks
from synk.processes.stderr_log import StderrLog
from synk.processes.watch import REAPER, fork_child, watched
from synk.rank.connection import Connection
from synk.run.birth import Birth, Family, live
from synk.run.crew import Crew, Worker
from synk.run.flush import flush
from synk.run.nursery import Forker
from synk.run.post import post_birth
from synk.run.seed import Seed
from synk.transport.frames import pair
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel


def launch(
    crew: Crew,
    make_device: Callable[[int], Device],
    seed: Seed | None = None,
    connection: Connection | None = None,
    forker: Forker | None = None,
) -> None:
    """Start the workers of a crew that has none yet; the calling process is rank 0.

    Parameters
    ----------
    crew : Crew
    make_device : callable
        ``make_device(rank) -> Device``, called in each worker.
    seed : Seed, optional
        What the workers have from the start.
    connection : Connection, optional
        How arrays go from one rank to another; by default in host memory.
    forker : Forker, optional
        By default this process.

    Raises
    ------
    OSError
        If the system refuses a process; those started before are ended.
    SynkStateError
        If the server is to fork, and is gone.
    """
    seed, connection, forker = seed or Seed(), connection or Connection(), forker or Forker()
    try:
        if forker.server is not None and forker.serves:
            _ask(forker.server, crew, make_device, seed, connection)
            crew.commons.seal()
        else:
            crew.commons.seal()
            if crew.n_ranks > 1:
                _warn_of_threads()
                flush()
            for rank in range(1, crew.n_ranks):
                _start(crew, rank, make_device, seed, connection, forker.server)
    except BaseException:
        crew.dismiss()
        raise


def _warn_of_threads() -> None:
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    names = [thread.name for thread in others if thread.name != REAPER]  # which has no lock
    if names and "ipykernel" not in sys.modules:  # a notebook kernel's threads do no harm
        warnings.warn(
            f"fork() was called while other threads run ({', '.join(names)}); a lock that one of them holds "
            "stays locked in the workers: call fork() before starting threads",
            SynkWarning,
            stacklevel=stacklevel(),
        )


def _ask(
    server: ForkServer, crew: Crew, make_device: Callable[[int], Device], seed: Seed, connection: Connection
) -> None:
    """Have the fork server fork all workers, and send each what it starts from."""
    for rank in range(1, crew.n_ranks):
        with hold(), _things(crew, rank) as (ours, theirs, log, stacks):
            crew.workers.append(Worker(watched(server.fork(theirs)), ours, log, stacks))
    for rank, worker in enumerate(crew.workers, start=1):
        post_birth(worker, rank, crew, make_device, seed, connection)


@contextmanager
def _things(crew: Crew, rank: int) -> Iterator[tuple[socket, socket, StderrLog, Stacks]]:
    """Make what a worker and the master talk through; it is closed again if no process comes of it."""
    with ExitStack() as made:
        ours, theirs = map(made.enter_context, pair())
        log = made.enter_context(closing(crew.make_log(rank)))
        stacks = made.enter_context(closing(Stacks()))
        yield ours, theirs, log, stacks
        made.pop_all()
        theirs.close()


def _start(
    crew: Crew,
    rank: int,
    make_device: Callable[[int], Device],
    seed: Seed,
    connection: Connection,
    server: ForkServer | None,
) -> None:
    # A handler that raised in here would leave the child and descriptors behind.
    with hold(), _things(crew, rank) as (ours, theirs, log, stacks):
        by_main_thread = threading.current_thread() is threading.main_thread()
        family = Family(os.getpid(), by_main_thread, crew.workers, ours, server)
        birth = Birth(rank, crew.commons, theirs, log, crew.printout, stacks, make_device, seed, connection)
        pid = fork_child(lambda: live(birth, family))
        crew.workers.append(Worker(watched(pid), ours, log, stacks))
