"""Make a fork a worker.

    launch -> live -> serve -> the end
    ForkServer -> arrive -> WorkerSpec.receive -> live

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
from collections.abc import Iterable
from socket import socket
from typing import Any, NoReturn

import numpy as np

from synk.run.arrays.variables import RankVariables
from synk.run.launch.placement import Binding
from synk.run.launch.worker_spec import WorkerSpec
from synk.run.rank.loop import serve
from synk.run.rank.rank import Rank
from synk.transport.commands.channel import WorkerChannel
from synk.transport.commands.deaths import Deaths
from synk.transport.commands.mailbox import WorkerPost
from synk.transport.commands.sync import Barrier
from synk.transport.memory.segments import SegmentTable
from synk.transport.memory.shm import Segment
from synk.transport.processes.process import Process, die_with, flush_streams, forbid_core_dumps
from synk.transport.processes.signals import ignore_signals
from synk.transport.processes.stderr_log import STDERR
from synk.values import messages


def arrive(end: socket, parent: int) -> NoReturn:
    """Be the worker that is described over a socket, until the end."""
    try:
        die_with(parent)
        spec = WorkerSpec.receive(end, parent)
        if spec is not None:
            live(spec)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def live(spec: WorkerSpec, others: Iterable[Any] = ()) -> NoReturn:
    """Be a worker until the end; first close ``others``, which it inherited and are not its own."""
    status = 1
    try:
        die_with(spec.parent, by_kernel=spec.by_main_thread)
        _become_a_process(spec)
        for other in others:
            other.close()
        spec.commons.seal()
        shared = spec.commons
        post = WorkerPost(spec.place, shared.mailboxes, shared.control, shared.bells, spec.spins)
        channel = WorkerChannel(spec.end, post)
        rank = _make_rank(spec, Process(spec.parent), channel)
        rank.get_ready()
        serve(rank, channel, spec.log.deliver)
        spec.printout.finish()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            flush_streams()
            spec.log.deliver()
        finally:  # streams may be the script's own, and raise
            os._exit(status)


def _become_a_process(spec: WorkerSpec) -> None:
    """Give the fork signals, streams and random numbers of its own."""
    ignore_signals()
    spec.printout.take_over(spec.rank)
    spec.log.take_over()
    spec.stacks.answer()
    become_rank(spec.rank)
    gc.freeze()  # what the master had made is no garbage of this process


def become_rank(rank: int) -> None:
    """Give the process of a rank words at a fault, and random numbers of its own."""
    forbid_core_dumps()
    faulthandler.enable(file=STDERR)  # a segmentation fault says where
    # Else all ranks would draw the same numbers.
    random.seed(rank)
    np.random.seed(rank)


def _make_rank(spec: WorkerSpec, master: Process, channel: WorkerChannel) -> Rank:
    Binding(spec.devices, spec.place)
    device = spec.devices.make(spec.place)
    device.activate()
    barrier = Barrier(
        spec.commons.control,
        spec.commons.bells,
        spec.place,
        spins=spec.spins,
        deaths=Deaths({master.fileno(): 0, _hang_up(spec.end): 0}, lambda rank: os._exit(1)),
        on_late=lambda late: None,  # the master alone watches over deadlines
        machine=spec.machine,
    )
    segments = SegmentTable()
    segments.hold(dict(spec.segments))
    variables = RankVariables(spec.rank, device.to_host, device.from_host)
    communicator = spec.connection.communicator(
        barrier, device, lambda nbytes: _follow_growth(channel, barrier, segments)
    )
    rank = spec.connection.rank(barrier, communicator, device, segments, variables)
    for message in spec.messages:
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
