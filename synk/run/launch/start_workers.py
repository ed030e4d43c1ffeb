"""Start the workers of one machine, one by one.

launch -> fork -> Crew (master), run_worker (worker)
       -> ForkingServer.fork, WorkerSpec.send -> Crew (master), receive_and_run (worker)
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from socket import socket
from typing import Any

from synk.run.device import Devices
from synk.run.launch.birth import run_worker
from synk.run.launch.crew import Crew, Worker
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.recovery import RunState
from synk.run.launch.worker_spec import WorkerSpec
from synk.run.rank.connection import Connection
from synk.transport.commands.frames import pair
from synk.transport.commands.interfaces import CLOSE_SECONDS
from synk.transport.processes.process import WITHOUT_LOCKS, flush_streams, fork_child, watched
from synk.transport.processes.signals import hold_signals
from synk.transport.processes.stacks import Stacks
from synk.transport.processes.stderr_log import StderrLog
from synk.values.machine import Machine
from synk.values.script_frames import warn_the_script


def launch(
    source: ForkSource,
    devices: Devices,
    connection: Connection,
    state: RunState,
    machine: Machine | None = None,
    others: Sequence[Any] = (),
) -> Crew:
    """Start a run's workers on this machine, and return them; this process is the rank at place 0.

    The workers start from ``state``. In a run on several machines, ``machine`` is this one. Each worker
    closes ``others``, objects with file descriptors that it inherits but must not keep.

    Raises OSError if the system refuses a process, after those already started have been ended, and
    SynkStateError if the fork server is needed but has ended.
    """
    crew, server, specs = Crew(devices.n_ranks, machine), source.server(devices), []
    by_main_thread = threading.current_thread() is threading.main_thread()
    if server is None and crew.n_ranks > 1:
        _warn_of_threads()
        source.note_forking()
        flush_streams()
    try:
        for place in range(1, crew.n_ranks):
            # A signal handler that raised here would leave a process and file descriptors behind.
            with hold_signals(), _shared_with(crew, place) as (ours, theirs, log, stacks):
                spec = WorkerSpec(
                    place,
                    machine,
                    os.getpid(),
                    by_main_thread,
                    crew.spins,
                    devices,
                    connection,
                    theirs,
                    crew.commons,
                    crew.printout,
                    log,
                    stacks,
                    state.segments.items(),
                    state.messages(place if machine is None else machine.ranks[place]),
                )
                if server is not None:
                    pid = server.fork(theirs)
                    specs.append(spec)
                else:
                    inherited = [ours, source, *others, *(held for worker in crew.workers for held in worker)]
                    pid = fork_child(partial(run_worker, spec, inherited))
                crew.workers.append(Worker(watched(pid), ours, log, stacks))
        for worker, spec in zip(crew.workers, specs, strict=False):  # only now: the server forks all at once
            spec.send(worker.end)
        crew.commons.seal()
        source.note_launched()
        return crew
    except BaseException:
        crew.dismiss(CLOSE_SECONDS)
        raise


def _warn_of_threads() -> None:
    """Warn if other threads run: a lock that one of them holds stays locked in the forked workers."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    names = [thread.name for thread in others if thread.name not in WITHOUT_LOCKS]
    if names and "ipykernel" not in sys.modules:  # a notebook kernel's threads do no harm
        warn_the_script(
            f"fork() was called while other threads run ({', '.join(names)}); a lock that one of them holds "
            "stays locked in the workers: call fork() before starting threads"
        )


@contextmanager
def _shared_with(crew: Crew, place: int) -> Iterator[tuple[socket, socket, StderrLog, Stacks]]:
    """Make the sockets, log and stack file of a worker and the master; close them if the fork fails."""
    with ExitStack() as made:
        ours, theirs = map(made.enter_context, pair())
        log = made.enter_context(closing(crew.commons.stderr_log(place)))
        stacks = made.enter_context(closing(Stacks()))
        yield ours, theirs, log, stacks
        made.pop_all()
        theirs.close()
