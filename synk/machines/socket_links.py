"""Links between machines over sockets: who waits for a message is woken up by it.

    send -> the _Way to a machine -> its socket ... socket -> the _Way from a machine -> receive

A machine that is gone says nothing any more, and is told nothing: the master notices its loss by the
connection of commands.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import Any

from synk.transport.frames import GONE
from synk.values.errors import SynkStateError

LENGTH = struct.Struct("<q")  # before each message
PIECES = 16  # that one call of the system sends
RECEIVED_BYTES = 1 << 14  # that one call receives, where no more is known to come


class SocketLinks:
    """The connections from this machine to all others, by their numbers: `Links`."""

    def __init__(self, machine: int, ends: Mapping[int, socket.socket]):
        self.machine, self.n_machines = machine, len(ends) + 1
        self._ways = {other: _Way(other, end) for other, end in ends.items()}
        self._at = {way.end.fileno(): way for way in self._ways.values()}
        self._poll = select.poll()
        for descriptor in self._at:
            self._poll.register(descriptor, select.POLLIN)
        self._arrived: deque[tuple[int, memoryview]] = deque()
        self._whole = _Whole()

    def send(self, machine: int, message: bytes) -> None:
        way = self._ways[machine]
        if not way.is_gone:
            with self._whole:
                way.leaving += memoryview(LENGTH.pack(len(message))), memoryview(message)
                self._move(way, select.POLLOUT)

    def unsent(self) -> bool:
        return any(way.leaving for way in self._ways.values())

    def push(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := self.unsent()) and (now := time.monotonic()) < deadline:
            self.rest(deadline - now)
        return left

    def receive(self) -> tuple[int, memoryview] | None:
        return self._arrived.popleft() if self._arrived else None

    def rest(self, seconds: float) -> bool:
        ready = self._poll.poll(1000 * seconds)
        if ready:
            with self._whole:
                for descriptor, events in ready:
                    self._move(self._at[descriptor], events)
        return bool(ready)

    def _move(self, way: _Way, events: int) -> None:
        """Send and receive as far as a socket is ready for it."""
        if events & select.POLLOUT:
            way.send_on()
        if events & ~select.POLLOUT:
            while (message := next(way.messages)) is not None:
                self._arrived.append((way.machine, message))
        if way.is_gone:
            self._poll.unregister(way.end)
        else:
            self._poll.register(way.end, select.POLLIN | (select.POLLOUT if way.leaving else 0))

    def close(self) -> None:
        for way in self._ways.values():
            way.end.close()


class _Whole:
    """Sending or receiving, which a signal handler may tear apart: then nothing can be told any more."""

    def __init__(self) -> None:
        self._is_torn = False

    def __enter__(self) -> None:
        if self._is_torn:
            raise SynkStateError(
                "the run was interrupted in the middle of a message between machines; synk.restart() starts "
                "new workers, synk.close() ends the run"
            )
        self._is_torn = True

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._is_torn = kind is not None


class _Way:
    """The connection to one machine.

    Attributes
    ----------
    leaving : deque of memoryview
        Pieces of messages that have not left yet.
    messages : iterator of memoryview, or None
        What comes, one message after the other; None where the next one is not here yet.
    is_gone : bool
        Whether the other end is.
    """

    def __init__(self, machine: int, end: socket.socket):
        self.machine, self.end = machine, end
        end.setblocking(False)
        self.leaving: deque[memoryview] = deque()
        self.is_gone = False
        self.messages = self._coming()
        next(self.messages)  # until something comes

    def send_on(self) -> None:
        """Send as much as fits in the buffers of the socket."""
        try:
            while self.leaving:
                self._note(self.end.sendmsg(list(islice(self.leaving, PIECES))))
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(error)

    def _note(self, sent: int) -> None:
        """Drop so many bytes of what was leaving."""
        while self.leaving and sent >= self.leaving[0].nbytes:
            sent -= self.leaving.popleft().nbytes
        if sent:
            self.leaving[0] = self.leaving[0][sent:]

    def _coming(self) -> Iterator[memoryview | None]:
        """Yield messages; None where nothing more is here, until something is."""
        come = b""
        try:
            while True:
                if not come:
                    yield None
                while len(come) < LENGTH.size:
                    come += yield from self._received(self.end.recv, RECEIVED_BYTES)
                (length,) = LENGTH.unpack_from(come)
                message = memoryview(bytearray(length))
                filled = len(first := come[LENGTH.size : LENGTH.size + length])
                message[:filled], come = first, come[LENGTH.size + length :]
                while filled < length:
                    filled += yield from self._received(self.end.recv_into, message[filled:])
                yield message
        except OSError as error:
            self._lose(error)
        while True:
            yield None

    def _received(self, receive: Callable[[Any], Any], what: Any) -> Generator[None, None, Any]:
        """Call a method of the socket until something has come, and return that; yield None before."""
        while True:
            try:
                received = receive(what)
            except BlockingIOError:
                yield None
                continue
            if not received:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the other end")
            return received

    def _lose(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        self.is_gone = True
        self.leaving.clear()
