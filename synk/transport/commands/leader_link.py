"""Both ends of the connection between the master and the leader of another machine, over TCP.

    LeaderLink.send -> LeaderEnd.receive -> a leader and its workers -> LeaderEnd.reply -> LeaderLink.look

A handshake has proven that both ends belong to the run (see ``synk.transport.machines``), so messages are
unpickled. The kernel cuts a connection whose other end does not read for two seconds, and a rank that
computes does not read. So a large frame, or one that follows many unread bytes, is announced first, and sent
when the other end answers that it reads.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from synk.transport.commands.frames import Frame, Receiver, encode, endless, give_up, send
from synk.transport.commands.interfaces import Death, Disconnected
from synk.transport.commands.sync import SLEEP_SECONDS
from synk.values import messages
from synk.values.errors import Failure, RankState, SynkStateError
from synk.values.machine import Machine

LARGE_BYTES = 1 << 16  # frames of fewer bytes fit in the buffers of a socket


class Large(NamedTuple):
    """Announces that a large frame will be sent when the other end answers `Go`."""


class Go(NamedTuple):
    """Answers `Large`: this end reads, so the large frame can be sent now."""


class Ended(NamedTuple):
    """Says that the launcher ends this machine's processes, because another machine's have ended."""


class Loss(NamedTuple):
    """A worker that died on another machine."""

    rank: int
    death: Death


class Inquiry(NamedTuple):
    """Asks a leader which ranks it waits for; a leader that computes does not answer."""


class InquiryAnswer(NamedTuple):
    """A leader's answer to an `Inquiry`: the ranks that it waits for, and its machine's ranks' states."""

    late: tuple[int, ...]  # ranks of the leader's machine; empty if it waits for other machines
    ranks: tuple[RankState, ...]  # of the leader's machine


def size_of(frame: Frame) -> int:
    """Return the size of a frame in bytes."""
    return sum(memoryview(part).nbytes for part in frame.parts)


class LeaderLink:
    """The master's end of its connection to the leader of another machine.

    Attributes
    ----------
    machine : Machine
    pids : tuple of int
        The process ids of that machine's ranks.
    replies : list of Reply, optional
        Replies to the present command, once they have come; or the exception that unpickling them has raised.
    loss : Loss, optional
        The death, or the lost connection, that has ended the machine's part in the run.
    inquiry_answer : InquiryAnswer, optional
        The answer to the last `inquire`.
    is_ended : bool
        Whether the launcher has ended the machine's processes, because another machine was lost.
    torn : bool
        Whether a message may have been sent or read in part only.
    patience : callable
        Called now and then while the leader does not read, or a frame is incomplete; raises to give up.
    """

    def __init__(self, machine: Machine, end: socket.socket):
        self.machine, self.pids = machine, (0,) * machine.n_places
        self.replies: Any = None
        self.loss: Loss | None = None
        self.inquiry_answer: InquiryAnswer | None = None
        self.is_ended = self.torn = False
        self.patience: Callable[[], Any] = endless
        self._end = end
        self._may_send = False
        self._unread = 0  # bytes sent since the leader's last message, which has shown that it reads
        self._receiver = Receiver(end, self._while_waiting)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        end.settimeout(SLEEP_SECONDS)  # a leader that is stopped neither reads nor writes

    def _while_waiting(self) -> None:
        self.patience()

    def send(self, frame: Frame) -> None:
        """Send a frame; if the connection is broken, `look` finds that out."""
        self.torn = True
        self._unread += size_of(frame)
        if self._unread > LARGE_BYTES:
            self._may_send = False
            self._send(encode(Large()))
            while not self._may_send and self.loss is None:
                self._take(SLEEP_SECONDS)
                self.patience()
            self._unread = 0
        self._send(frame)
        self.torn = False

    def _send(self, frame: Frame) -> None:
        if self.loss is None:
            try:
                send(self._end, frame, self._while_waiting)
            except Disconnected:
                self._lose()

    def greet(self, seconds: float) -> Any:
        """Take the pids of the leader's ranks from its first message, and return where the ranks run.

        Raises SynkStateError if no such message has come within ``seconds``, for which the caller has waited.
        """
        host = self.machine.host
        if isinstance(self.replies, Failure):
            raise SynkStateError(
                f"host {host} could not start its ranks: {self.replies.summary}\n\n{self.replies.traceback}"
            )
        if self.is_ended:
            raise SynkStateError(
                f"another host was lost while ranks started: the launcher has ended {host}, too"
            )
        if self.loss is not None:
            raise SynkStateError(f"host {host} was lost while its ranks started")
        if self.replies is None:
            raise SynkStateError(f"host {host} has not started its ranks within {seconds:.0f} s")
        (self.pids, placement), self.replies = self.replies, None
        return placement

    def inquire(self) -> None:
        """Ask which ranks the leader waits for, unless the connection is `torn`."""
        self.inquiry_answer = None
        if not self.torn:
            self.send(encode(Inquiry()))

    def hear(self, deadline: float) -> None:
        """Wait for the answer to `inquire` or for the replies to the command, until ``deadline``.

        The deadline is a moment of ``time.monotonic()``.
        """
        while self.inquiry_answer is self.replies is self.loss is None and not self.torn:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.look(left)

    def look(self, seconds: float = 0.0) -> None:
        """Read one message if it has come or comes within ``seconds``; do nothing while `torn`."""
        if not self.torn:
            self.torn = True
            self._take(seconds)
            self.torn = False

    def _take(self, seconds: float) -> None:
        if self.loss is not None or not self._poll.poll(1000 * seconds):
            return
        try:
            unpickle = self._receiver.read()
        except Disconnected:
            self._lose()
            return
        try:
            message, _ = unpickle()
        except Exception as error:  # a class in the message is not known here
            message = error
        if not isinstance(message, Ended):  # a signal handler sends it, even if the leader does not read
            self._unread = 0
        if isinstance(message, Loss):
            self.loss = message
        elif isinstance(message, InquiryAnswer):
            self.inquiry_answer = message
        elif isinstance(message, Ended):
            self.is_ended = True
        elif isinstance(message, Large):
            self._send(encode(Go()))
        elif isinstance(message, Go):
            self._may_send = True
        else:
            self.replies = message

    def _lose(self) -> None:
        death = Death(self.pids[0], "a lost connection", "", "", self.machine)
        self.loss = Loss(self.machine.first, death)

    def blame(self, cause: str) -> None:
        """Replace the recorded cause of the machine's loss, after it was found out."""
        if self.loss is not None:
            self.loss = self.loss._replace(death=self.loss.death._replace(cause=cause))

    @property
    def is_cut(self) -> bool:
        """Tell whether the machine, or the connection to it, is lost, and not just a worker on it."""
        return self.loss is not None and self.loss.death.lost is not None

    def dismiss(self) -> None:
        """Tell the leader to end, unless the connection is closed or the leader does not read."""
        if self._end.fileno() >= 0:
            self.patience = give_up
            self._send(encode(messages.Close()))

    def close(self) -> None:
        self._end.close()


class LeaderEnd:
    """A leader's end of its connection to the master; it implements `CommandSource`."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._kept: deque[Any] = deque()  # messages that have come before they were asked for
        self._sending = False
        self._receiver = Receiver(end)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def receive(self) -> tuple[Any, int | None]:
        """Return the next message, or the error that unpickling it raised; see `CommandSource`."""
        while True:
            message = self._kept.popleft() if self._kept else self._read()
            if isinstance(message, Large):
                self._send(encode(Go()))
            elif not isinstance(message, Inquiry):  # which needs no answer once the replies were sent
                return message, None

    def _read(self) -> Any:
        unpickle = self._receiver.read()
        try:
            return unpickle()[0]
        except Exception as error:  # a module is missing here, say
            return error

    def pending(self) -> bool:
        return bool(self._kept or self._poll.poll(0))

    def is_asked(self) -> bool:
        """Tell whether an `Inquiry` has come during a command; keep other messages for `receive`."""
        while not self._kept and self._poll.poll(0):
            message = self._read()
            if isinstance(message, Inquiry):
                return True
            self._kept.append(message)
        return False

    def reply(self, message: Any) -> None:
        """Send a message; if it cannot be pickled, raise that error, and send nothing."""
        frame = encode(message)
        if size_of(frame) > LARGE_BYTES:
            self._send(encode(Large()))
            asked, _ = self.receive()
            if not isinstance(asked, Go):  # the master has given up
                raise Disconnected
        self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._sending = True
        try:
            send(self._end, frame)
        except OSError:
            raise Disconnected from None
        finally:
            self._sending = False

    def say_ended(self) -> None:
        """Tell the master that the launcher ends this process; safe in a signal handler."""
        if not self._sending:
            with suppress(Disconnected):
                self._send(encode(Ended()))

    def hung_up(self) -> bool:
        """Tell whether the master has closed its end or is gone, even if there are messages to read yet."""
        ended = select.poll()
        ended.register(self._end, select.POLLRDHUP)
        return bool(ended.poll(0))

    def close(self) -> None:
        self._end.close()
