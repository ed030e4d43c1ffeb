"""Links between machines over sockets: who waits for a message is woken up by it.

    send -> the _Way to a machine -> its socket ... socket -> the _Way from a machine -> receive

A machine that is gone says nothing any more, and is told nothing. The master notices its loss by the
connection of commands, but not that two others do not reach each other: who waits looks which are `cut`.

Handlers of signals may raise between any two lines. So what the system has sent or received is noted within
the same call, ``extend(map(...))``, and what was taken in is dropped afterwards.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from synk.transport.commands.frames import GONE

LENGTH = struct.Struct("<q")  # before each message
NUMBER = struct.Struct("=I")
# Where in Linux's tcp_info these are: a byte, a number of packets, and two of ms.
PROBES, UNACKNOWLEDGED, SINCE_DATA, SINCE_ANSWER = 3, 24, 52, 56
SILENCE_MS = 2000
MOST_PROBES = 3  # without an answer, each after twice the time: 1.4 s
PIECES = 16  # that one call of the system sends
RECEIVED_BYTES = 1 << 14, 1 << 20  # that one call receives, of small messages and of large ones


class SocketLinks:
    """The connections from this machine to all others, by their numbers: `Links`."""

    def __init__(self, machine: int, ends: Mapping[int, socket.socket]):
        self.machine, self.n_machines = machine, len(ends) + 1
        self._ways = {other: _Way(end) for other, end in ends.items()}
        self._senders = {end.fileno(): other for other, end in ends.items()}
        self._poll = select.poll()
        for descriptor in self._senders:
            self._poll.register(descriptor, select.POLLIN)
        self._arrived: deque[tuple[int, memoryview]] = deque()

    def send(self, machine: int, message: bytes) -> None:
        way = self._ways[machine]
        if not way.is_gone:
            self._poll.register(way.end, select.POLLIN | select.POLLOUT)
            way.send(message)
            self._settle(way)

    def unsent(self) -> bool:
        return any(way.leaving.pieces for way in self._ways.values())

    def push(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.unsent():
            self.rest(max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                return self.unsent()
        return False

    def receive(self, take: Callable[[int, memoryview], Any]) -> None:
        while self._arrived:
            take(*self._arrived[0])
            self._arrived.popleft()

    def rest(self, seconds: float) -> bool:
        ready = self._poll.poll(1000 * seconds)
        for descriptor, events in ready:
            sender = self._senders[descriptor]
            way = self._ways[sender]
            if events & select.POLLOUT:
                way.send_on()
            if events & ~select.POLLOUT:
                messages, beyond = way.receive()
                self._arrived.extend((sender, message) for message in messages)
                way.came = beyond
            self._settle(way)
        return bool(ready)

    def _settle(self, way: _Way) -> None:
        """Let `rest` look at what a socket is to be ready for next."""
        if way.is_gone:
            self._poll.unregister(way.end)
        else:
            self._poll.register(way.end, select.POLLIN | (select.POLLOUT if way.leaving.pieces else 0))

    def cut(self) -> list[str]:
        return [way.address for way in self._ways.values() if way.is_gone or is_silent(way.end)]

    def close(self) -> None:
        for way in self._ways.values():
            way.end.close()


class _Leaving(NamedTuple):
    """Pieces of messages, and how many bytes of them the system has sent, call by call."""

    pieces: list[memoryview]
    sent: list[int]


class _Way:
    """The connection to one machine.

    Attributes
    ----------
    address : str
        Of the other end.
    leaving : _Leaving
        What is to be sent; empty again where all of it was.
    came : list of bytes
        What has come, and was not taken in.
    is_gone : bool
        Whether the other end is.
    """

    def __init__(self, end: socket.socket):
        self.end, self.address = end, str(end.getpeername()[0])
        end.setblocking(False)
        self.is_gone = False
        self.leaving = _Leaving([], [])
        self.came: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.leaving.pieces.extend((memoryview(LENGTH.pack(len(message))), memoryview(message)))
        self.send_on()

    def send_on(self) -> None:
        """Send as much as fits in the buffers of the socket."""
        pieces, sent = self.leaving
        try:
            while left := pieces_behind(sum(sent), pieces):
                sent.extend(map(self.end.sendmsg, (left,)))
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
        self.leaving = _Leaving([], [])

    def receive(self) -> tuple[list[memoryview], list[bytes]]:
        """Receive once; return the messages that are complete by that, and what has come beyond them."""
        count = min(max(missing_bytes(self.came), RECEIVED_BYTES[0]), RECEIVED_BYTES[1])
        try:
            self.came.extend(map(self.end.recv, (count,)))
            if not self.came[-1]:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the other end")
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(error)
        if missing_bytes(self.came):
            return [], self.came
        return taken_apart(b"".join(self.came))

    def _lose(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        self.is_gone = True


def is_silent(end: socket.socket) -> bool:
    """Tell whether another machine does not even say that it has got what was sent to it.

    Connections that are at rest ask every second, and a process that does not read answers all the same.
    Where nothing leaves this machine any more, the kernel probes in vain.
    """
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SINCE_ANSWER + NUMBER.size)
    (unacknowledged,) = NUMBER.unpack_from(info, UNACKNOWLEDGED)
    silence = min(*NUMBER.unpack_from(info, SINCE_DATA), *NUMBER.unpack_from(info, SINCE_ANSWER))
    return bool(unacknowledged and silence > SILENCE_MS) or info[PROBES] >= MOST_PROBES


def pieces_behind(nbytes: int, pieces: Sequence[memoryview]) -> list[memoryview]:
    """Leave out so many bytes of pieces; return as many of the others as one call sends."""
    for number, piece in enumerate(pieces):
        if nbytes < piece.nbytes:
            return [piece[nbytes:], *pieces[number + 1 : number + PIECES]]
        nbytes -= piece.nbytes
    return []


def missing_bytes(came: Sequence[bytes]) -> int:
    """Return how many bytes the first message lacks, or its length does."""
    total = sum(map(len, came))
    if total < LENGTH.size:
        return LENGTH.size - total
    (length,) = LENGTH.unpack_from(came[0] if len(came[0]) >= LENGTH.size else b"".join(came))
    return max(LENGTH.size + int(length) - total, 0)


def taken_apart(came: bytes) -> tuple[list[memoryview], list[bytes]]:
    """Return the messages that are complete, and what has come beyond them."""
    messages, start, view = [], 0, memoryview(came)
    while len(came) - start >= LENGTH.size:
        (length,) = LENGTH.unpack_from(came, start)
        stop = start + LENGTH.size + length
        if stop > len(came):
            break
        messages.append(view[start + LENGTH.size : stop])
        start = stop
    return messages, [came[start:]] if start < len(came) else []
