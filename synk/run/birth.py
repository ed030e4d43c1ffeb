"""Make a fork a worker.

    launch -> live: settle, let go of what is the siblings', plant the seed -> serve -> the end

A worker has everything imported already, and leaves by ``os._exit``, so nothing that the script
registered to run at exit runs twice.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import select
import traceback
from collections.abc import Callable, Iterator, Sequence
from socket import socket
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from synk.arrays.variables import RankVariables
from synk.comm import HostCommunicator
from synk.device import Device
from synk.memory.segments import SegmentTable
from synk.memory.shm import Segment
from synk.processes.fork_server import ForkServer
from synk.processes.printout import Printout
from synk.processes.signals import ignore_signals
from synk.processes.stacks import Stacks
from synk.processes.stderr_log import STDERR, StderrLog
from synk.processes.watch import Process, die_with, forbid_core_dumps
from synk.rank.connection import Connection
from synk.rank.loop import serve
from synk.rank.worker import Rank
from synk.run.crew import Worker, have_cores
from synk.run.flush import flush
from synk.transport.channel import WorkerChannel
from synk.transport.commons import Commons
from synk.transport.mailbox import WorkerPost
from synk.transport.sync import Barrier
from synk.values import messages


class Inheritance(Protocol):
    """A `Seed`, or one that is sent."""

    def segments(self) -> SegmentTable: ...

    def messages(self, rank: int) -> Iterator[Any]: ...


class Birth(NamedTuple):
    """What a worker brings along."""

    rank: int
    commons: Commons
    end: socket
    log: StderrLog
    printout: Printout
    stacks: Stacks
    make_device: Callable[[int], Device]
    seed: Inheritance
    connection: Connection


class Family(NamedTuple):
    """Whom a worker was born to, and what it inherited that is not its own."""

    parent: int  # pid of the master
    by_main_thread: bool
    siblings: Sequence[Worker] = ()  # that were born before
    masters_end: socket | None = None
    server: ForkServer | None = None


def live(birth: Birth, family: Family) -> NoReturn:
    """Be a worker until the end."""
    status = 1
    try:
        die_with(family.parent, by_kernel=family.by_main_thread)
        forbid_core_dumps()
        _settle(birth)
        _leave_siblings(family)
        commons = birth.commons
        spins = have_cores(commons.n_ranks)
        post = WorkerPost(birth.rank, commons.mailboxes, commons.control, commons.bells, spins)
        channel = WorkerChannel(birth.end, post)
        serve(_make_rank(birth, commons, Process(family.parent), channel), channel, birth.log.deliver)
        birth.printout.finish()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            flush()
            birth.log.deliver()
        finally:  # streams may be the script's own, and raise
            os._exit(status)


def _settle(birth: Birth) -> None:
    """Make the fork a process of its own."""
    ignore_signals()
    birth.printout.take_over(birth.rank)
    birth.log.take_over()
    birth.stacks.answer()
    faulthandler.enable(file=STDERR)  # a segmentation fault says where
    # Else all ranks would draw the same numbers.
    random.seed(birth.rank)
    np.random.seed(birth.rank)
    gc.freeze()  # what the master had made is no garbage of this process


def _leave_siblings(family: Family) -> None:
    if family.masters_end is not None:
        family.masters_end.close()
    if family.server is not None:
        family.server.leave()
    for sibling in family.siblings:
        for held in sibling:
            held.close()


def _make_rank(birth: Birth, commons: Commons, master: Process, channel: WorkerChannel) -> Rank:
    device = birth.make_device(birth.rank)
    device.activate()
    barrier = Barrier(
        commons.control,
        commons.bells,
        birth.rank,
        spins=have_cores(commons.n_ranks),
        lives=[master.fileno(), _hang_up(birth.end)],
        on_death=lambda descriptor: os._exit(1),
    )
    segments = birth.seed.segments()
    variables = RankVariables(birth.rank, device.to_host, device.from_host)
    communicator = HostCommunicator(
        birth.rank, commons.control, barrier, lambda nbytes: _follow_growth(channel, barrier, segments)
    )
    rank = Rank(communicator, commons.control, barrier, device, segments, variables, birth.connection)
    for message in birth.seed.messages(birth.rank):
        rank.prepare(message)
    return rank


def _hang_up(end: socket) -> int:
    """Return a descriptor that is readable once the master's end of a socket is closed.

    An exec closes it, and leaves the master's pidfd as it was.
    """
    with select.epoll() as poll:
        poll.register(end, 0)  # hang-ups are told always; messages may wait
        return os.dup(poll.fileno())


def _follow_growth(channel: WorkerChannel, barrier: Barrier, segments: SegmentTable) -> Segment:
    """Wait for the new arena that the master makes in the middle of a collective."""
    barrier.wait_for(channel.fileno())
    message, descriptor = channel.receive_frame()
    assert isinstance(message, messages.Attach)
    return segments.attach(message, descriptor)
