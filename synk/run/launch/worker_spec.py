"""The description of a new worker: a process forked by the master inherits it, others are sent it.

    launch -> WorkerSpec -> fork -> run_worker
                         -> send ... receive -> run_worker

A process that the fork server forks has the state of the master from when the server was forked. It is sent
the master's present `Surroundings`, but not modules imported, or names defined in ``__main__``, since then.
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

N_STANDARD = 3  # number of standard descriptors: input, output and error
SECONDS = 60.0  # how long a worker may take to receive the next part of its description


@dataclass
class WorkerSpec:
    """One worker: its rank, what it shares with the master, and the state it starts from.

    Attributes
    ----------
    place : int
        Its number among the ranks of its machine, from 0; on one machine this is its rank.
    machine : Machine, optional
        The worker's machine in a run on several.
    parent : int
        Process id of the master, or of the leader of this machine.
    by_main_thread : bool
        Whether the main thread has forked it, which lives as long as the process: only then the kernel can
        end the worker with its parent.
    spins : bool
        Whether waiting ranks spin before they sleep.
    devices : Devices
        The devices of all ranks.
    connection : Connection
        How arrays go from rank to rank.
    end : socket
        The worker's end of the channel to the master.
    commons : Commons
        The control memory that all ranks of the machine share.
    printout, log, stacks
        The files to which it prints, writes its standard error, and writes its stack when asked.
    segments : iterable of (int, Segment)
        The segments of shared memory with their numbers, mapped in this process. It can be iterated over
        once, as can ``messages``.
    messages : iterable
        The messages that build its state: shared variables, with the rank's own values, and functions.
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
        """Send this description to a worker, over the master's end of its channel.

        Raises TimeoutError if the worker is alive but does not read. If it has died, nothing is raised here,
        but by the first command.
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
        """Receive the description that `send` sends; return None if the worker is no longer needed.

        Its segments and messages are received one by one, while the caller iterates over them.
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
    """Receive a file descriptor."""
    return _checked(receiver.receive()[1])


def _checked(descriptor: int | None) -> int:
    """Return a received file descriptor; raise OSError if the kernel could not install it in this process."""
    if descriptor is None:
        raise OSError(
            "a new worker had no file descriptor left for a shared resource; raise the limit (ulimit -n)"
        )
    return descriptor


def _segments(receiver: Receiver) -> Iterator[tuple[int, Segment]]:
    """Yield the number and the segment, mapped here, of each message until an empty one."""
    for attach, descriptor in iter(receiver.receive, (None, None)):
        segment = Segment.attach(_checked(descriptor), attach.nbytes, attach.offset, attach.writable)
        yield attach.segment, segment
