"""Start the workers.

    launch -> fork, one by one -> Crew (master), live (worker)

Imports floor 3 and below, ``birth``, ``crew`` and ``seed``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from synk.device import Device
from synk.errors import SynkWarning
from synk.processes.hold import hold
from synk.processes.stacks import Stacks
from synk.processes.vigil import level_of_the_script
from synk.processes.watch import Process
from synk.rank.connection import Connection
from synk.run.birth import Birth, Family, live
from synk.run.crew import Crew, Worker
from synk.run.seed import Seed
from synk.wire.frames import pair


def launch(
    crew: Crew,
    make_device: Callable[[int], Device],
    seed: Seed | None = None,
    connection: Connection | None = None,
) -> None:
    """Fork the workers of a crew that has none yet; the calling process is rank 0.

    Parameters
    ----------
    crew : Crew
    make_device : callable
        ``make_device(rank) -> Device``, called in each worker.
    seed : Seed, optional
        What the workers have from the start.
    connection : Connection, optional
        How arrays go from one rank to another; by default in host memory.

    Raises
    ------
    OSError
        If the system refuses a process; those started before are ended.
    """
    try:
        if crew.n_ranks > 1:
            _warn_of_threads()
            _flush()
        for rank in range(1, crew.n_ranks):
            _start(crew, rank, make_device, seed or Seed(), connection or Connection())
    except BaseException:
        crew.dismiss()
        raise


def _flush() -> None:
    """Write out what is buffered, else workers would write it again."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()


def _warn_of_threads() -> None:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if names and "ipykernel" not in sys.modules:  # a notebook kernel's threads do no harm
        warnings.warn(
            f"fork() was called while other threads run ({', '.join(names)}); a lock that one of them holds "
            "stays locked in the workers: call fork() before starting threads",
            SynkWarning,
            stacklevel=level_of_the_script(),
        )


def _start(
    crew: Crew, rank: int, make_device: Callable[[int], Device], seed: Seed, connection: Connection
) -> None:
    # A handler that raised in here would make the child a second master, or leave it and descriptors behind.
    with hold() as signals, ExitStack() as made:  # closed again if no process comes of it
        ours, theirs = map(made.enter_context, pair())
        log = made.enter_context(closing(crew.make_log(rank)))
        stacks = made.enter_context(closing(Stacks()))
        family = Family(os.getpid(), threading.current_thread() is threading.main_thread(), crew, ours)
        pid = _fork()
        if pid == 0:
            live(Birth(rank, theirs, log, stacks, make_device, seed, connection, signals), family)
        crew.workers.append(Worker(_watched(pid), ours, log, stacks))
        made.pop_all()
        theirs.close()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python's own warning counts the threads of BLAS libraries, which handle forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _watched(pid: int) -> Process:
    try:
        return Process(pid)
    except BaseException:  # no descriptor left, and nobody would know of the child
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
