"""Messages between the master and the leaders of other machines, over TCP.

    MachinesChannel.command -> Relay -> LeaderEnd.receive -> a leader and its workers
                                     <- LeaderEnd.reply <- replies of a machine, or a `Loss`

A command is one frame to each machine, and its replies are one frame back. A handshake has proven who is at
the ends (see ``synk.machines``), so what comes here is unpickled. The kernel cuts a connection whose other
end does not read for two seconds: a large reply waits until the master, which may compute for long, asks
for it.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from synk.transport.base import Channel, Death, Disconnected, Leaders, OnDeath, OnLate
from synk.transport.channel import SLEEP_SECONDS
from synk.transport.frames import Frame, Receiver, encode, endless, send
from synk.transport.mirror import Mirror
from synk.transport.steps import PickledSteps
from synk.values import messages
from synk.values.errors import Failure, SynkStateError
from synk.values.machine import Machine

LARGE_BYTES = 1 << 16  # of a reply: fewer fit in the buffers of a socket


class LargeReply(NamedTuple):
    """A reply that waits until the master says `Go`."""


class Go(NamedTuple):
    """Send the large reply now."""


class Loss(NamedTuple):
    """A worker that died on another machine."""

    rank: int
    death: Death


class LeaderLink:
    """The master's end of its connection to one leader.

    Attributes
    ----------
    machine : Machine
    pids : tuple of int
        Of that machine's ranks.
    replies : list of Reply, optional
        To the present command, once they have come.
    loss : Loss, optional
        What has ended the machine's part in the run.
    """

    def __init__(self, machine: Machine, end: socket.socket):
        self.machine, self.pids = machine, (0,) * machine.n_places
        self.replies: Any = None
        self.loss: Loss | None = None
        self._end = end
        self._receiver = Receiver(end)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, frame: Frame) -> None:
        """Send a frame; a connection that is broken is found out by `look`."""
        try:
            send(self._end, frame, endless)
        except (Disconnected, OSError):
            self._lose()

    def greet(self, seconds: float) -> Any:
        """Wait until the leader has forked its workers, and says who and, as is returned, where they are.

        Raises SynkStateError if it does not.
        """
        self.look(seconds)
        host = self.machine.host
        if self.loss is not None:
            raise SynkStateError(f"host {host} was lost while its ranks started")
        if self.replies is None:
            raise SynkStateError(f"host {host} has not started its ranks within {seconds:g} s")
        if isinstance(self.replies, Failure):
            raise SynkStateError(
                f"host {host} could not start its ranks: {self.replies.summary}\n\n{self.replies.traceback}"
            )
        (self.pids, placement), self.replies = self.replies, None
        return placement

    def look(self, seconds: float = 0.0) -> None:
        """Take in what has come, or comes within so many seconds."""
        if self.loss is None and self._poll.poll(1000 * seconds):
            try:
                message, _ = self._receiver.receive()
            except (Disconnected, OSError):
                self._lose()
                return
            if isinstance(message, Loss):
                self.loss = message
            elif isinstance(message, LargeReply):
                self.send(encode(Go()))
            else:
                self.replies = message

    def _lose(self) -> None:
        death = Death(self.pids[0], "a lost connection", "", "", self.machine)
        self.loss = self.loss or Loss(self.machine.first, death)

    @property
    def is_cut(self) -> bool:
        """Tell whether the machine, or the way to it, is lost, and not just a worker on it."""
        return self.loss is not None and self.loss.death.lost is not None

    def close(self) -> None:
        self._end.close()


class MachinesChannel:
    """The master's way to the workers of its machine and to the leaders of others: a `Channel`.

    Ranks of this machine answer ``here``.
    """

    def __init__(
        self,
        here: Channel,
        links: Sequence[LeaderLink],
        mirror: Mirror,
        leaders: Leaders,
        on_death: OnDeath,
        on_late: OnLate,
    ):
        self._here, self._links, self._mirror, self._leaders = here, links, mirror, leaders
        self._on_death, self._on_late = on_death, on_late
        self._pickled = PickledSteps()
        self._replies: list[messages.Reply] | None = None  # of this machine
        self._torn = False
        self.waiting = False

    @property
    def torn(self) -> bool:
        return self._torn or self._here.torn

    def command(self, command: messages.Command) -> None:
        self._torn = self.waiting = True
        self._replies = None
        fills, steps = self._mirror.fills(command.steps), self._pickled.of(command.steps)
        self._send(messages.Relay(fills, command.number, steps, command.start, command.stop))
        self._here.command(command)
        self._torn = False

    def _send(self, message: Any) -> None:
        frame = encode(message)
        for link in self._links:
            link.replies = None
            link.send(frame)

    def post(self, message: Any, descriptor: int | None = None) -> None:
        if not self.waiting:  # in the middle of a command it is what the workers of this machine wait for
            self._torn = True
            self._send(message)
            self._torn = False
        for one in message.messages if isinstance(message, messages.Several) else [message]:
            if isinstance(one, messages.Attach) and one.file is None:
                self._leaders.share(one.segment, self._mirror.segments[one.segment])
            elif isinstance(one, messages.Detach):
                self._mirror.forget(one.segment)
                self._leaders.unshare(one.segment)
        self._here.post(message, descriptor)

    def collect(self, seconds: float | None = None) -> list[messages.Reply]:
        deadline = None if seconds is None else time.monotonic() + seconds
        if self._replies is None:
            self._replies = self._here.collect(seconds)
        for link in self._links:
            while link.replies is None:
                self._await(link, deadline)
        self.waiting = False
        return [*self._replies, *chain.from_iterable(link.replies or () for link in self._links)]

    def _await(self, link: LeaderLink, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("not all machines have answered")
        link.look(SLEEP_SECONDS)
        look_at(self._links, self._on_death)
        if link.replies is None:
            self._on_late(link.machine.ranks)

    def close(self) -> None:
        self._here.close()


def look_at(links: Sequence[LeaderLink], on_death: OnDeath) -> None:
    """Take in what leaders have sent; report the first rank that is lost."""
    for link in links:
        link.look()
        if link.loss is not None:
            on_death(link.loss.rank)


class LeaderEnd:
    """A leader's end of its connection to the master: a `CommandSource`."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._receiver = Receiver(end)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def receive(self) -> tuple[Any, int | None]:
        try:
            return self._receiver.receive()
        except OSError:  # the way to the master is cut
            raise Disconnected from None

    def pending(self) -> bool:
        return bool(self._poll.poll(0))

    def reply(self, message: Any) -> None:
        frame = encode(message)
        if sum(len(memoryview(part)) for part in frame.parts) > LARGE_BYTES:
            self._send(encode(LargeReply()))
            asked, _ = self.receive()
            if not isinstance(asked, Go):  # the master has given up
                raise Disconnected
        self._send(frame)

    def _send(self, frame: Frame) -> None:
        try:
            send(self._end, frame)
        except OSError:
            raise Disconnected from None

    def hung_up(self) -> bool:
        """Return whether the master has closed its end, or is gone."""
        try:
            return not self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._end.close()
