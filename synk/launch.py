"""Start the workers and end them.

    launch -> Crew (processes, channel, shared words) ... Crew.dismiss

Each worker is a fork of the master: it has everything imported already, and leaves by
``os._exit``, so nothing that the script registered to run at exit runs twice.

Imports floor 3 and below.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from synk import channel, messages, sync
from synk.channel import Disconnected, MasterChannel, WorkerChannel
from synk.comm import HostCommunicator
from synk.device import Device
from synk.device.cpu import count_cores
from synk.errors import SynkWarning
from synk.mailbox import IDLE_SPIN_SECONDS, Mailboxes, MasterPost, WorkerPost
from synk.segments import SegmentTable
from synk.shm import Segment
from synk.sync import Barrier, ControlBlock, Doorbells
from synk.variables import RankVariables
from synk.watch import Process, die_with, forbid_core_dumps
from synk.worker import Rank, serve

CLOSE_SECONDS = 2.0  # for a worker to leave on its own
TERMINATE_SECONDS = 1.0  # then to leave on SIGTERM


@dataclass
class Crew:
    """The workers of a run and what the master shares with them."""

    control: ControlBlock
    bells: Doorbells
    mailboxes: Mailboxes
    processes: list[Process] = field(default_factory=list)  # from rank 1
    ends: list[socket.socket] = field(default_factory=list)  # the master's, from rank 1

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""
        return (os.getpid(), *(process.pid for process in self.processes))

    def open_channel(self, on_death: Callable[[int], None]) -> MasterChannel:
        """Return the master's channel to all workers."""
        spin = spin_seconds(self.control.n_ranks)
        post = MasterPost(self.mailboxes, self.control, self.bells, spin)
        return MasterChannel(self.ends, self.processes, on_death, post)

    def barrier(self, on_death: Callable[[int], None]) -> Barrier:
        """Return the master's barrier; ``on_death`` is called with a dead worker's rank."""
        ranks = {process.fileno(): rank for rank, process in enumerate(self.processes, start=1)}
        return Barrier(
            self.control,
            self.bells,
            rank=0,
            spin=spin_seconds(self.control.n_ranks),
            lives=list(ranks),
            on_death=lambda descriptor: on_death(ranks[descriptor]),
        )

    def dismiss(self) -> None:
        """End all workers, gently at first, and free what was shared."""
        farewell = channel.encode(messages.Close())
        for end in self.ends:
            end.setblocking(False)
            with contextlib.suppress(Disconnected, OSError):  # it is gone already, or does not read
                channel.send(end, farewell)
        try:
            _end(self.processes)
        except KeyboardInterrupt:  # the second ^C means at once
            for process in self.processes:
                process.signal(signal.SIGKILL)
            raise
        finally:
            self._free()

    def _free(self) -> None:
        for process in self.processes:
            process.reap()
        for end in self.ends:
            end.close()
        self.mailboxes.close()
        self.bells.close()
        self.control.close()
        self.processes, self.ends = [], []


def _end(processes: Sequence[Process]) -> None:
    """Wait for processes to end; insist, stage by stage, with those that do not."""
    for patience, signals in (
        (CLOSE_SECONDS, [signal.SIGTERM]),
        (TERMINATE_SECONDS, [signal.SIGCONT, signal.SIGKILL]),
    ):
        deadline = time.monotonic() + patience
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            if not process.wait(0):
                for number in signals:
                    process.signal(number)


def spin_seconds(n_ranks: int) -> float:
    """Return how long to spin at a barrier: not at all where ranks share cores."""
    return sync.SPIN_SECONDS if n_ranks <= count_cores() else 0.0


def launch(n_ranks: int, make_device: Callable[[int], Device]) -> Crew:
    """Fork ``n_ranks - 1`` workers; the calling process is rank 0.

    Parameters
    ----------
    n_ranks : int
    make_device : callable
        ``make_device(rank) -> Device``, called in each worker.

    Raises
    ------
    OSError
        If the system refuses a process; those started before are ended.
    """
    _warn_of_threads()
    crew = Crew(ControlBlock(n_ranks), Doorbells(n_ranks), Mailboxes(n_ranks))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(1, n_ranks):
            _start(crew, rank, make_device)
    except BaseException:
        crew.dismiss()
        raise
    return crew


def _warn_of_threads() -> None:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if names and "ipykernel" not in sys.modules:  # a notebook kernel's threads do no harm
        warnings.warn(
            f"fork() was called while other threads run ({', '.join(names)}); a lock that one of them holds "
            "stays locked in the workers: call fork() before starting threads",
            SynkWarning,
            stacklevel=6,
        )


def _start(crew: Crew, rank: int, make_device: Callable[[int], Device]) -> None:
    ours, theirs = channel.pair()
    parent = os.getpid()
    try:
        with warnings.catch_warnings():
            # Python's own warning counts the threads of BLAS libraries, which handle forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except BaseException:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _live(crew, rank, parent, theirs, ours, make_device)
    theirs.close()
    crew.ends.append(ours)
    crew.processes.append(Process(pid))


def _live(
    crew: Crew,
    rank: int,
    parent: int,
    mine: socket.socket,
    masters: socket.socket,
    make_device: Callable[[int], Device],
) -> None:
    """Be a worker until the end; never returns."""
    status = 1
    try:
        die_with(parent)
        forbid_core_dumps()
        _settle(rank)
        for end in (masters, *crew.ends):
            end.close()
        for sibling in crew.processes:
            sibling.close()
        master = Process(parent)
        idle_spin = IDLE_SPIN_SECONDS if spin_seconds(crew.control.n_ranks) else 0.0
        post = WorkerPost(rank, crew.mailboxes, crew.control, crew.bells, idle_spin)
        worker_channel = WorkerChannel(mine, post)
        rank_of_run = _make_rank(crew, rank, master, worker_channel, make_device)
        serve(rank_of_run, worker_channel)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _settle(rank: int) -> None:
    """Make the fork a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches all; the master decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    # Else all ranks would draw the same numbers.
    random.seed(rank)
    np.random.seed(rank)
    gc.freeze()  # what the master had made is no garbage of this process


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads
            stream.flush()


def _make_rank(
    crew: Crew,
    rank: int,
    master: Process,
    worker_channel: WorkerChannel,
    make_device: Callable[[int], Device],
) -> Rank:
    device = make_device(rank)
    device.activate()
    barrier = Barrier(
        crew.control,
        crew.bells,
        rank,
        spin=spin_seconds(crew.control.n_ranks),
        lives=[master.fileno()],
        on_death=lambda descriptor: os._exit(1),
    )
    segments, variables = SegmentTable(), RankVariables(rank)
    communicator = HostCommunicator(
        rank, crew.control, barrier, lambda nbytes: _follow_growth(worker_channel, barrier, segments)
    )
    return Rank(communicator, crew.control, barrier, device, segments, variables)


def _follow_growth(worker_channel: WorkerChannel, barrier: Barrier, segments: SegmentTable) -> Segment:
    """Wait for the new arena that the master makes in the middle of a collective."""
    barrier.wait_for(worker_channel.fileno())
    message, descriptor = worker_channel.receive_frame()
    assert isinstance(message, messages.Attach)
    return segments.attach(message, descriptor)
