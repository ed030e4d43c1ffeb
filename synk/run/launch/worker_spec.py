"""Describe a new worker: a fork of the master inherits this, one of the fork server is sent it.

    launch -> WorkerSpec -> fork -> live
                         -> send ... receive -> live

What the fork server forks inherits nothing of the master as it is now. It is sent the master's surroundings;
modules, and what stands in ``__main__``, are as they were when the server was forked, and what has been
defined since is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from socket import socket
from typing import Any

from synk.run.device import Devices
from synk.run.launch.surroundings import Surroundings
from synk.run.rank.connection import Connection
from synk.transport.commands.commons import Commons
from synk.transport.commands.frames import Disconnected, Receiver, encode, send
from synk.transport.memory.shm import Segment
from synk.transport.processes.printout import Printout
from synk.transport.processes.stacks import Stacks
from synk.transport.processes.stderr_log import StderrLog
from synk.values import messages
from synk.values.machine import Machine

N_STANDARD = 3  # descriptors that every process has
SECONDS = 60.0  # for a worker to take the next part of what it is sent


@dataclass
class WorkerSpec:
    """One worker: who it is, what it shares with the master, and what it starts from.

    Attributes
    ----------
    place : int
        Its index into what its machine's ranks share; its rank, on one machine.
    machine : Machine, optional
        This one of several.
    parent : int
        Pid of the master, or of the leader of this machine.
    by_main_thread : bool
        Whether the thread that forked it lives as long as the master.
    spins : bool
        Whether ranks spin before they sleep.
    devices : Devices
        Of all ranks.
    connection : Connection
        How their arrays meet.
    end : socket
        Its end of the channel to the master.
    commons : Commons
        What all ranks share.
    printout, log, stacks
        Where it prints, writes its standard error and answers what it is doing.
    segments : iterable of (int, Segment)
        Shared memory, with its numbers, mapped in this process. Run through once, as ``messages``.
    messages : iterable
        What it would have been sent by now: shared variables, with its own values, and functions.
    """

    place: int
    machine: Machine | None
    parent: int
    by_main_thread: bool
    spins: bool
    devices: Devices
    connection: Connection
    end: socket
    commons: Commons
    printout: Printout
    log: StderrLog
    stacks: Stacks
    segments: Iterable[tuple[int, Segment]]
    messages: Iterable[Any]

    @property
    def rank(self) -> int:
        """The worker's number among all ranks of the run."""
        return self.place if self.machine is None else self.machine.ranks[self.place]

    def send(self, end: socket) -> None:
        """Send all of this to a worker, over the master's end of its channel.

        The first command finds out if the worker dies meanwhile. Raises TimeoutError if it lives but does not
        read.
        """
        files = self.log.fileno(), self.printout.fileno(), self.stacks.fileno()
        end.settimeout(SECONDS)
        with suppress(Disconnected):
            _send(
                end,
                (self.place, self.machine, self.spins, self.devices, self.connection, Surroundings.present()),
            )
            for descriptor in (*range(N_STANDARD), *files, *self.commons.descriptors()):
                _send(end, None, descriptor)
            for number, segment in self.segments:
                attach = messages.Attach(number, segment.nbytes, segment.offset, segment.writable)
                _send(end, attach, segment.descriptor)
            _send(end, None)
            for message in self.messages:
                _send(end, message)
            _send(end, None)

    @classmethod
    def receive(cls, end: socket, parent: int) -> WorkerSpec | None:
        """Return the spec that `send` has sent; None if no worker is needed any more.

        Its segments and messages are received one by one, as they are iterated over.
        """
        receiver = Receiver(end)
        head, _ = receiver.receive()
        if isinstance(head, messages.Close):
            return None
        place, machine, spins, devices, connection, surroundings = head
        for standard in range(N_STANDARD):
            given = _descriptor(receiver)
            os.dup2(given, standard)
            os.close(given)
        log, printout, stacks = (_descriptor(receiver) for _ in range(3))
        n_ranks = devices.n_ranks
        commons = Commons(n_ranks, [_descriptor(receiver) for _ in range(2 + n_ranks)])
        surroundings.enter()
        return cls(
            place,
            machine,
            parent,
            True,
            spins,
            devices,
            connection,
            end,
            commons,
            Printout(printout),
            commons.stderr_log(place, log),
            Stacks(stacks),
            _segments(receiver),
            iter(lambda: receiver.receive()[0], None),
        )


def _send(end: socket, message: Any, descriptor: int | None = None) -> None:
    send(end, encode(message)._replace(descriptor=descriptor), _give_up)


def _give_up() -> None:
    raise TimeoutError(f"a new worker did not receive all that it needs to start within {SECONDS:g} s")


def _descriptor(receiver: Receiver) -> int:
    return _checked(receiver.receive()[1])


def _checked(descriptor: int | None) -> int:
    if descriptor is None:
        raise OSError(
            "a new worker had no file descriptor left for a shared resource; raise the limit (ulimit -n)"
        )
    return descriptor


def _segments(receiver: Receiver) -> Iterator[tuple[int, Segment]]:
    for attach, descriptor in iter(receiver.receive, (None, None)):
        segment = Segment.attach(_checked(descriptor), attach.nbytes, attach.offset, attach.writable)
        yield attach.segment, segment
