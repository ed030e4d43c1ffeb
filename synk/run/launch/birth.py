"""Make a forked process a worker, which serves commands until it exits.

    launch -> run_worker -> serve -> os._exit
    ForkingServer -> receive_and_run -> WorkerSpec.receive -> run_worker

A forked worker has all modules imported already. It leaves by ``os._exit``, so that functions which the
script has registered to run at exit do not run in workers, too.
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


def receive_and_run(end: socket, parent: int) -> NoReturn:
    """Receive the description of a worker over a socket, and be this worker until the process ends."""
    try:
        die_with(parent)
        spec = WorkerSpec.receive(end, parent)
        if spec is not None:
            run_worker(spec)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def run_worker(spec: WorkerSpec, others: Iterable[Any] = ()) -> NoReturn:
    """Be a worker until the process ends; first close ``others``, inherited objects of other ranks."""
    status = 1
    try:
        die_with(spec.parent, by_kernel=spec.by_main_thread)
        _set_up_process(spec)
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


def _set_up_process(spec: WorkerSpec) -> None:
    """Set up the forked process as a worker: its signal handlers, output streams and random numbers."""
    ignore_signals()
    spec.printout.take_over(spec.rank)
    spec.log.take_over()
    spec.stacks.answer()
    set_up_rank_process(spec.rank)
    gc.freeze()  # the garbage collector need not look through the objects of the master


def set_up_rank_process(rank: int) -> None:
    """Let a rank's process print its stack at a segmentation fault, and seed its global random numbers."""
    forbid_core_dumps()
    faulthandler.enable(file=STDERR)
    # With the state inherited from the master, all ranks would draw the same numbers.
    random.seed(rank)
    np.random.seed(rank)


def _make_rank(spec: WorkerSpec, master: Process, channel: WorkerChannel) -> Rank:
    """Return the rank of this worker, with the variables and functions that it starts from."""
    Binding(spec.devices, spec.place)
    device = spec.devices.make(spec.place)
    device.activate()
    barrier = Barrier(
        spec.commons.control,
        spec.commons.bells,
        spec.place,
        spins=spec.spins,
        deaths=Deaths({master.fileno(): 0, _hang_up(spec.end): 0}, lambda rank: os._exit(1)),
        on_late=lambda late: None,  # only the master checks deadlines
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
    """Return a file descriptor that becomes readable when the master's end of a socket is closed.

    This also notices if the master's process executes another program: its pidfd would not tell.
    """
    with select.epoll() as poll:
        poll.register(end, 0)  # epoll reports hang-ups always; without a mask it ignores messages
        return os.dup(poll.fileno())


def _follow_growth(channel: WorkerChannel, barrier: Barrier, segments: SegmentTable) -> Segment:
    """Wait for the larger arena that the master makes during a collective, and return its segment."""
    barrier.wait_for(channel.fileno())
    message, descriptor = channel.receive_frame()
    assert isinstance(message, messages.Attach)
    return segments.attach(message, descriptor)
