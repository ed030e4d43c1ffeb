"""The channels by which the master and the workers of one machine exchange messages.

Small commands and replies go through mailboxes in shared memory; all other messages go as frames over
sockets.

    MasterChannel.post(message) -> WorkerChannel.receive ... reply -> MasterChannel.collect
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from synk.transport.commands.deaths import Deaths
from synk.transport.commands.frames import Disconnected, Outbox, Receiver, encode, send
from synk.transport.commands.interfaces import OnLate
from synk.transport.commands.mailbox import MasterPost, WorkerPost
from synk.transport.commands.sync import SLEEP_SECONDS
from synk.values.messages import Command, Relay

LOOK_SECONDS = 0.01  # between looks for dead workers while calls follow each other fast


class MasterChannel:
    """The master's ends of the channels to all workers; it implements `Channel`.

    While it waits, it calls ``on_late`` from time to time with the ranks that it waits for; ``on_late``
    raises to end the wait. ``ends`` are sockets, in rank order from rank 1.
    """

    def __init__(
        self,
        ends: Sequence[socket.socket],
        deaths: Deaths,
        mailbox: MasterPost,
        on_late: OnLate,
    ):
        self._ends = list(ends)
        self._on_late = on_late
        self._patience_with = [partial(self._while_waiting, rank) for rank in range(1, len(ends) + 1)]
        self._deadline: float | None = None  # of `collect`
        self._receivers = [Receiver(end, *one) for end, *one in zip(ends, self._patience_with, strict=True)]
        self._deaths = deaths
        self._mailbox = mailbox
        self._frames = 0  # the number of frames that each worker was sent
        self._looked = 0.0
        self._replies: dict[int, Callable[[], Any]] = {}  # those that have come, by rank
        self.waiting = False  # whether a command was sent, and `collect` has not returned its answers
        self.torn = False  # whether something may have been sent or read in part only
        self._poll = select.poll()
        self._rank_of_end = {end.fileno(): rank for rank, end in enumerate(ends, start=1)}
        for end in ends:
            end.settimeout(SLEEP_SECONDS)  # a worker that is stopped neither reads nor writes
            self._poll.register(end, select.POLLIN)
        deaths.register(self._poll)
        self._poll.register(mailbox, select.POLLIN)

    def command(self, command: Command) -> None:
        if not self._ends:
            return
        mailbox = self._mailbox
        payload = mailbox.pickled.of(command.steps)  # if this raises, nothing was sent
        self.torn = self.waiting = True
        if not mailbox.send(command, payload, self._frames):
            self.post(Relay((), command.number, payload, command.start, command.stop))
            return
        self.torn = False
        # The command is in the box. Even a worker whose doorbell is not rung looks for it within
        # SLEEP_SECONDS.
        mailbox.wake()

    def post(self, message: Any, descriptor: int | None = None) -> None:
        if not self._ends:
            return
        frame = encode(message)._replace(descriptor=descriptor)
        self._frames += 1
        self._deadline = None
        self.torn = True
        for rank, end in enumerate(self._ends, start=1):
            try:
                send(end, frame, self._patience_with[rank - 1])
            except Disconnected:
                self._deaths.found(rank)
        self.torn = False

    def collect(self, seconds: float | None = None) -> list[Any]:
        if not self._ends:
            return []
        mailbox = self._mailbox
        if mailbox.spun():
            # Most replies come here, while the master spins.
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look_for_deaths()
            self.waiting = False
            return mailbox.replies()
        self.waiting = True
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._sleep_until_all_here()
        self._look_for_deaths()
        replies, self._replies, self.waiting = self._replies, {}, False
        return [replies[rank]() for rank in sorted(replies)]

    def _sleep_until_all_here(self) -> None:
        began = time.monotonic()
        while not self._all_here():
            self._receive_ready()
            missing = [rank for rank in range(1, len(self._ends) + 1) if rank not in self._replies]
            if missing:
                self._on_late(missing)
        self._mailbox.spin.missed(time.monotonic() - began)

    def _all_here(self) -> bool:
        """Note the replies that are in mailboxes; return whether all workers have answered."""
        for rank in self._mailbox.arrived():
            self._replies[rank] = partial(self._mailbox.reply, rank)
        return len(self._replies) == len(self._ends)

    def _look_for_deaths(self) -> None:
        """Report workers that died after they had answered; called now and then: it is a system call."""
        self._looked = time.monotonic()
        self._deaths.report(descriptor for descriptor, _ in self._poll.poll(0))

    def _receive_ready(self) -> None:
        ready = self._wait()
        # A reply that a worker sent before it died still counts.
        self._all_here()
        for descriptor in ready:
            rank = self._rank_of_end.get(descriptor)
            if rank is not None and rank not in self._replies:
                self._receive(rank)
        self._deaths.report(ready)

    def _wait(self) -> list[int]:
        """Sleep until a reply has come or a worker has died; return the descriptors that became readable."""
        self._mailbox.sleep(True)
        try:
            # A worker that answered before the sleep was announced rang no doorbell, so look once more.
            ready = [] if self._all_here() else self._poll.poll(_milliseconds(self._deadline))
        finally:
            self._mailbox.sleep(False)
        if not ready and not self._all_here():
            self._check_deadline()
        return [descriptor for descriptor, _ in ready]

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeoutError("not all workers have answered")

    def _while_waiting(self, rank: int) -> None:
        """Raise if it is time to give up on a worker; called while a frame to or from it is incomplete."""
        self._check_deadline()
        self._on_late([rank])

    def _receive(self, rank: int) -> None:
        self.torn = True
        try:
            self._replies[rank] = _first_of(self._receivers[rank - 1].read())
        except Disconnected:
            self._deaths.found(rank)
        self.torn = False

    def close(self) -> None:
        """Release the memory of the workers' replies; the sockets are closed by their owner."""
        for receiver in self._receivers:
            receiver.close()


def _first_of(read: Callable[[], tuple[Any, int | None]]) -> Callable[[], Any]:
    """Return a function that unpickles a reply, given one that also returns a descriptor."""
    return lambda: read()[0]


def _milliseconds(deadline: float | None) -> float:
    """Return how long to poll: until the deadline, but for `SLEEP_SECONDS` at most."""
    left = SLEEP_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
    return 1000 * min(left, SLEEP_SECONDS)


class WorkerChannel:
    """A worker's end of its channel to the master; it implements `CommandSource`."""

    def __init__(self, end: socket.socket, mailbox: WorkerPost):
        self._end = end
        self._mailbox = mailbox
        self._receiver = Receiver(end)
        self._outbox = Outbox()
        self._frames = 0
        self._by_mailbox = False  # whether the last command came by the mailbox, where its reply then goes
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._poll.register(mailbox, select.POLLIN)

    def receive(self) -> tuple[Any, int | None]:
        mailbox = self._mailbox
        if not mailbox.spun():
            began = time.monotonic()
            while not mailbox.pending():
                if self._sleep():
                    return self.receive_frame()
            mailbox.spin.missed(time.monotonic() - began)
        if self._frames < mailbox.frames:  # sent before the command
            return self.receive_frame()
        self._by_mailbox = True
        return mailbox.take(), None

    def pending(self) -> bool:
        if self._mailbox.pending():
            return True
        return any(descriptor == self._end.fileno() for descriptor, _ in self._poll.poll(0))

    def receive_frame(self) -> tuple[Any, int | None]:
        """Return the next message from the socket and its descriptor, or the error of unpickling it."""
        self._frames += 1
        self._by_mailbox = False
        unpickle = self._receiver.read()
        try:
            message, descriptor = unpickle()
        except Exception as error:
            return error, None
        if isinstance(message, Relay):
            steps = self._mailbox.steps_of(message.steps)
            message = Command(message.number, steps, message.start, message.stop)
        return message, descriptor

    def _sleep(self) -> bool:
        """Sleep until a message has come, `SLEEP_SECONDS` at most; return whether there is a frame."""
        mailbox = self._mailbox
        mailbox.sleep(True)
        try:
            # A command that was written before the sleep was announced rang no doorbell, so look once more.
            ready = [] if mailbox.pending() else self._poll.poll(1000 * SLEEP_SECONDS)
        finally:
            mailbox.sleep(False)
        return any(descriptor == self._end.fileno() for descriptor, _ in ready)

    def fileno(self) -> int:
        return self._end.fileno()

    def reply(self, message: Any) -> None:
        if self._by_mailbox and self._mailbox.reply(message):
            return
        send(self._end, encode(message, self._outbox))
        self._outbox.sent()
