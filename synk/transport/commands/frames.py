"""Send and receive messages of any size over a socket.

    encode(message) -> Frame -> send ... Receiver.receive -> message

A frame is a head, a pickle, and the buffers of the arrays in it. The large buffers of a reply are not sent:
the worker leaves them in its outbox, a segment that the master has attached. Pickle is safe here, because no
stranger can reach the sockets: they are a pair that was inherited across ``fork``, or both ends have proven
by a handshake that they belong to the run.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from synk.transport.commands.interfaces import Disconnected
from synk.transport.memory.shm import Segment
from synk.values.by_value import dumps

HEAD = struct.Struct("<QQQ")  # bytes of pickle, number of buffers, bytes of the outbox or 0
SIZE = struct.Struct("<Q")
TIMED_OUT = "timed out"  # what a socket says, always
CROWDED_SECONDS = 5.0  # to wait until descriptors in flight, of all programs of this user, have arrived
CROWDED_PAUSE = 0.001  # between two trials meanwhile
APART_BYTES = (
    1 << 12
)  # smaller buffers are copied into the pickle, which takes less time than two system calls
INLINE_BYTES = 1 << 16  # larger replies go through the outbox, which saves two copies by the kernel


# Errors which mean that the other end of a connection, or the network between, is gone. An error without a
# number does not come from a connection but from a deadline.
GONE = frozenset(
    {
        errno.EPIPE,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.ENOTCONN,
    }
)

# Called each time the socket's timeout passes while the other end keeps this one waiting; raises to give up.
# It is never called for a socket without a timeout.
Patience = Callable[[], None]


def endless() -> None:
    """Do nothing: a `Patience` that never gives up."""


def give_up() -> None:
    """Raise Disconnected: a ``patience`` that gives up at once on an end that does not read."""
    raise Disconnected


class Frame(NamedTuple):
    """A message as bytes, ready to send, and the file descriptor that goes with it."""

    parts: list[Any]
    descriptor: int | None = None


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a pair of connected sockets: the master's and the worker's end of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Outbox:
    """A segment of shared memory in which a worker leaves the large buffers of a reply for the master."""

    def __init__(self) -> None:
        self._segment: Segment | None = None

    def put(self, buffers: list[memoryview]) -> tuple[int, int | None]:
        """Copy ``buffers`` into the segment; return its size and, if it is a new one, its descriptor."""
        total = sum(buffer.nbytes for buffer in buffers)
        new = self._segment is None or self._segment.nbytes < total
        if new:
            larger = Segment.create(total)  # where there is no room, the old one stays
            self.close()
            self._segment = larger
        assert self._segment is not None
        space, start = self._segment.array("u1", (total,)), 0
        for buffer in buffers:
            space[start : start + buffer.nbytes] = buffer
            start += buffer.nbytes
        return self._segment.nbytes, self._segment.descriptor if new else None

    def sent(self) -> None:
        """Close the segment's descriptor, after it was sent to the other process."""
        if self._segment is not None:
            self._segment.seal()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()


def encode(message: Any, outbox: Outbox | None = None) -> Frame:
    """Pickle ``message`` into a frame, which refers to the buffers of arrays without copying them.

    With an ``outbox``, large buffers are copied there. Raises the error of pickling, if there is one.
    """
    pickled: list[pickle.PickleBuffer] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        small = buffer.raw().nbytes < APART_BYTES
        if not small:
            pickled.append(buffer)
        return small

    payload = dumps(message, is_small)
    buffers = [buffer.raw() for buffer in pickled]
    sizes = b"".join(SIZE.pack(buffer.nbytes) for buffer in buffers)
    if outbox is None or sum(buffer.nbytes for buffer in buffers) <= INLINE_BYTES:
        return Frame([HEAD.pack(len(payload), len(buffers), 0) + sizes + payload, *buffers])
    nbytes, descriptor = outbox.put(buffers)
    return Frame([HEAD.pack(len(payload), len(buffers), nbytes) + sizes + payload], descriptor)


def send(end: socket.socket, frame: Frame, patience: Patience = endless) -> None:
    """Send a frame; raise `Disconnected` if the process at the other end is gone."""
    descriptors = [] if frame.descriptor is None else [frame.descriptor]
    try:
        for part in frame.parts:
            left = memoryview(part)
            while left:
                sent = patiently(patience, _send_some, end, left, descriptors)
                left, descriptors = left[sent:], []
    except OSError as error:
        if error.errno not in GONE:
            raise
        raise Disconnected from None


def _send_some(end: socket.socket, part: memoryview, descriptors: list[int]) -> int:
    return _send_with(end, part, descriptors) if descriptors else end.send(part)


def _send_with(end: socket.socket, part: memoryview, descriptors: list[int]) -> int:
    """Send bytes with file descriptors; wait while too many descriptors of this user are in flight.

    Linux allows only as many descriptors in flight, sent and not received, as a process may have open, and
    counts those of all processes of the user. So a moment later there may be room.
    """
    deadline = time.monotonic() + CROWDED_SECONDS
    while True:
        try:
            return socket.send_fds(end, [part], descriptors)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() >= deadline:
                raise
            time.sleep(CROWDED_PAUSE)


def patiently(patience: Patience, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``call(*arguments)``; each time the socket times out, call ``patience()`` and try again."""
    while True:
        try:
            return call(*arguments)
        except TimeoutError as error:
            if str(error) != TIMED_OUT:  # raised by a signal handler, not by the socket
                raise
            patience()


class Receiver:
    """The receiving side of one end of a channel."""

    def __init__(self, end: socket.socket, patience: Patience = endless):
        self._end = end
        self._patience = patience
        self._inbox: Segment | None = None  # the outbox of the other end

    def receive(self) -> tuple[Any, int | None]:
        """Return the next message, and the descriptor that came with it or None."""
        return self.read()()

    def read(self) -> Callable[[], tuple[Any, int | None]]:
        """Read a whole frame; return a function that unpickles it to the message and its descriptor."""
        try:
            head, descriptor = self._receive_head()
            try:
                n_payload, n_buffers, n_outbox = HEAD.unpack(head)
                sizes = [SIZE.unpack(self._exactly(SIZE.size))[0] for _ in range(n_buffers)]
                payload = self._exactly(n_payload)
                inline = [] if n_outbox else [self._exactly(size) for size in sizes]
            except BaseException:
                if descriptor is not None:
                    os.close(descriptor)
                raise
        except OSError as error:
            if error.errno not in GONE:
                raise
            raise Disconnected from None
        if not n_outbox:
            return lambda: (pickle.loads(payload, buffers=inline), descriptor)
        if descriptor is not None:
            self.close()
            self._inbox = Segment.attach(descriptor, n_outbox)
        return lambda: (pickle.loads(payload, buffers=self._copies(sizes)), None)

    def _receive_head(self) -> tuple[bytes, int | None]:
        head, descriptors, _, _ = patiently(self._patience, socket.recv_fds, self._end, HEAD.size, 1)
        descriptor = descriptors[0] if descriptors else None
        try:
            if descriptor is not None:
                os.set_inheritable(descriptor, False)
            return head + self._exactly(HEAD.size - len(head)), descriptor
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise

    def _exactly(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            received = patiently(self._patience, self._end.recv_into, view)
            if not received:
                raise Disconnected
            view = view[received:]
        return buffer

    def _copies(self, sizes: list[int]) -> list[bytearray]:
        # Buffers are copied, since the other end overwrites its outbox with its next reply.
        assert self._inbox is not None
        space, start, copies = self._inbox.array("u1", (self._inbox.nbytes,)), 0, []
        for size in sizes:
            copies.append(bytearray(space[start : start + size].data))
            start += size
        return copies

    def close(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
