"""Messages between the master and its workers, over socket pairs that nobody else can reach.

Commands and replies that are small take the mailboxes instead, if there are some.

    MasterChannel.post(message) -> WorkerChannel.receive ... reply -> MasterChannel.collect

A frame is a head, a pickle, and the buffers of the arrays in it. A reply whose buffers are
large leaves them in the worker's outbox, a segment that the master has attached. Pickle is
safe here because both ends are one program, and the pair was inherited across ``fork``.

Imports ``mailbox``, ``messages``, ``shm`` and ``watch``.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from synk.mailbox import MasterPost, WorkerPost
from synk.messages import Run
from synk.shm import Segment
from synk.watch import Process

HEAD = struct.Struct("<QQQ")  # bytes of pickle, number of buffers, bytes of the outbox or 0
SIZE = struct.Struct("<Q")
INLINE_BYTES = 1 << 16  # larger replies go through the outbox, which saves two copies by the kernel
SLEEP_SECONDS = 0.1  # a lost wake-up costs this much at most
LOOK_SECONDS = 0.01  # between looks for dead workers while calls follow each other fast


class Disconnected(Exception):
    """The process at the other end is gone."""


class Frame(NamedTuple):
    """A message ready to send, and the descriptor that goes with it."""

    parts: list[Any]
    descriptor: int | None = None


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the master's and the worker's end of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Outbox:
    """A segment in which one process leaves large buffers for the other."""

    def __init__(self) -> None:
        self._segment: Segment | None = None

    def put(self, buffers: list[memoryview]) -> tuple[int, int | None]:
        """Copy ``buffers`` in; return the outbox's size and, where it is new, its descriptor."""
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
        """Close the descriptor: the other end has it."""
        if self._segment is not None:
            self._segment.seal()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()


def encode(message: Any, outbox: Outbox | None = None) -> Frame:
    """Pickle ``message`` into a frame; buffers stay where they are until it is sent.

    Raises
    ------
    Exception
        Whatever pickling raises; nothing was sent then.
    """
    pickled: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(message, protocol=5, buffer_callback=pickled.append)
    buffers = [buffer.raw() for buffer in pickled]
    sizes = b"".join(SIZE.pack(buffer.nbytes) for buffer in buffers)
    if outbox is None or sum(buffer.nbytes for buffer in buffers) <= INLINE_BYTES:
        return Frame([HEAD.pack(len(payload), len(buffers), 0) + sizes + payload, *buffers])
    nbytes, descriptor = outbox.put(buffers)
    return Frame([HEAD.pack(len(payload), len(buffers), nbytes) + sizes + payload], descriptor)


def send(end: socket.socket, frame: Frame) -> None:
    """Send a frame."""
    try:
        first, *rest = frame.parts
        if frame.descriptor is None:
            sent = end.send(first)
        else:
            sent = socket.send_fds(end, [first], [frame.descriptor])
        if sent < len(first):
            end.sendall(memoryview(first)[sent:])
        for part in rest:
            end.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        raise Disconnected from None


class Receiver:
    """The receiving side of one end of a channel."""

    def __init__(self, end: socket.socket):
        self._end = end
        self._inbox: Segment | None = None  # the other end's outbox

    def receive(self) -> tuple[Any, int | None]:
        """Receive a message, and the descriptor that came with it or None."""
        return self.read()()

    def read(self) -> Callable[[], tuple[Any, int | None]]:
        """Read one frame whole; return what unpickles it."""
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
        except ConnectionResetError:
            raise Disconnected from None
        if not n_outbox:
            return lambda: (pickle.loads(payload, buffers=inline), descriptor)
        if descriptor is not None:
            self.close()
            self._inbox = Segment.attach(descriptor, n_outbox)
        return lambda: (pickle.loads(payload, buffers=self._copies(sizes)), None)

    def _receive_head(self) -> tuple[bytes, int | None]:
        head, descriptors, _, _ = socket.recv_fds(self._end, HEAD.size, 1)
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
            received = self._end.recv_into(view)
            if not received:
                raise Disconnected
            view = view[received:]
        return buffer

    def _copies(self, sizes: list[int]) -> list[bytearray]:
        # The other end writes over its outbox with its next reply.
        assert self._inbox is not None
        space, start, copies = self._inbox.array("u1", (self._inbox.nbytes,)), 0, []
        for size in sizes:
            copies.append(bytearray(space[start : start + size].data))
            start += size
        return copies

    def close(self) -> None:
        if self._inbox is not None:
            self._inbox.close()


class MasterChannel:
    """The master's ends of all channels.

    Parameters
    ----------
    ends : sequence of socket
        One per worker, in rank order from rank 1.
    processes : sequence of Process
        The workers.
    on_death : callable
        Called with the rank of a worker that is found dead; raises.
    mailbox : MasterPost, optional
    """

    def __init__(
        self,
        ends: Sequence[socket.socket],
        processes: Sequence[Process],
        on_death: Callable[[int], None],
        mailbox: MasterPost | None = None,
    ):
        self._ends = list(ends)
        self._receivers = [Receiver(end) for end in ends]
        self._on_death = on_death
        self._mailbox = mailbox
        self._frames = 0  # sent to each worker
        self._looked = 0.0
        self._replies: dict[int, Callable[[], tuple[Any, int | None]]] = {}
        self._waiting = False
        self.torn = False  # whether a frame was read in part only
        self._poll = select.poll()
        self._rank_of_end: dict[int, int] = {}
        self._rank_of_life: dict[int, int] = {}
        for rank, (end, process) in enumerate(zip(ends, processes, strict=True), start=1):
            self._poll.register(end, select.POLLIN)
            self._poll.register(process, select.POLLIN)
            self._rank_of_end[end.fileno()] = rank
            self._rank_of_life[process.fileno()] = rank
        if mailbox is not None:
            self._poll.register(mailbox, select.POLLIN)

    def command(self, command: Run) -> None:
        """Send a command to all workers."""
        if self._ends and (self._mailbox is None or not self._mailbox.send(command, self._frames)):
            self.post(command)

    def post(self, message: Any, descriptor: int | None = None) -> None:
        """Send ``message`` to all workers; it is pickled once, before anything is sent."""
        if not self._ends:
            return
        frame = encode(message)._replace(descriptor=descriptor)
        self._frames += 1
        for rank, end in enumerate(self._ends, start=1):
            try:
                send(end, frame)
            except Disconnected:
                self._on_death(rank)

    @property
    def waiting(self) -> bool:
        """Whether `collect` was left before all had answered."""
        return self._waiting

    def collect(self, seconds: float | None = None) -> list[Any]:
        """Receive one message from every worker, in rank order.

        Left by an exception while it waits, it can be called again; see `waiting` and `torn`.

        Raises
        ------
        TimeoutError
            If not all have answered after ``seconds``.
        Exception
            What unpickling an answer raised, once all have answered.
        """
        self._waiting = True
        deadline = None if seconds is None else time.monotonic() + seconds
        if self._mailbox is not None:
            self._mailbox.spin()
        while not self._all_here():
            self._receive_ready(deadline)
        self._look_for_deaths()
        replies, self._replies, self._waiting = self._replies, {}, False
        return [replies[rank]()[0] for rank in sorted(replies)]

    def _all_here(self) -> bool:
        """Take what is in the mailboxes; tell whether all have answered."""
        if self._mailbox is not None:
            for rank, payload in self._mailbox.arrived():
                self._replies[rank] = partial(_loaded, payload)
        return len(self._replies) == len(self._ends)

    def _look_for_deaths(self) -> None:
        """Look for workers that died after they had answered; not every time, for it takes a system call."""
        now = time.monotonic()
        if self._mailbox is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._bury([descriptor for descriptor, _ in self._poll.poll(0)])

    def _bury(self, ready: list[int]) -> None:
        for descriptor in ready:
            if descriptor in self._rank_of_life:
                self._on_death(self._rank_of_life[descriptor])

    def _receive_ready(self, deadline: float | None) -> None:
        ready = self._wait(deadline)
        # What a worker said before it died still counts.
        self._all_here()
        for descriptor in ready:
            rank = self._rank_of_end.get(descriptor)
            if rank is not None and rank not in self._replies:
                self._receive(rank)
        self._bury(ready)

    def _wait(self, deadline: float | None) -> list[int]:
        """Sleep until something has come, or a worker died; return which descriptors say so."""
        if self._mailbox is None:
            ready = self._poll.poll(_milliseconds(deadline))
        else:
            self._mailbox.sleep(True)
            try:
                # Looked at again after the sleep is announced: who answered before saw nobody to wake.
                ready = [] if self._all_here() else self._poll.poll(_milliseconds(deadline, SLEEP_SECONDS))
            finally:
                self._mailbox.sleep(False)
        if not ready and deadline is not None and time.monotonic() >= deadline and not self._all_here():
            raise TimeoutError("not all workers have answered")
        return [descriptor for descriptor, _ in ready]

    def _receive(self, rank: int) -> None:
        self.torn = True
        try:
            self._replies[rank] = self._receivers[rank - 1].read()
        except Disconnected:
            self._on_death(rank)
        self.torn = False

    def close(self) -> None:
        """Let go of what the workers sent; the sockets belong to who made them."""
        for receiver in self._receivers:
            receiver.close()


def _loaded(payload: bytes) -> tuple[Any, None]:
    return pickle.loads(payload), None


def _milliseconds(deadline: float | None, longest: float | None = None) -> float | None:
    """Return how long to poll: until a deadline, but not longer than so many seconds."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    limits = [seconds for seconds in (left, longest) if seconds is not None]
    return 1000 * min(limits) if limits else None


class WorkerChannel:
    """A worker's end of its channel.

    Parameters
    ----------
    end : socket
    mailbox : WorkerPost, optional
    """

    def __init__(self, end: socket.socket, mailbox: WorkerPost | None = None):
        self._end = end
        self._mailbox = mailbox
        self._receiver = Receiver(end)
        self._outbox = Outbox()
        self._frames = 0
        self._by_mailbox = False  # whether the last command came there: its reply goes there, too
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        if mailbox is not None:
            self._poll.register(mailbox, select.POLLIN)

    def receive(self) -> tuple[Any, int | None]:
        """Wait for the next message and the descriptor that came with it.

        Raises
        ------
        Disconnected
            When the master is gone.
        """
        mailbox = self._mailbox
        if mailbox is None:
            return self.receive_frame()
        while not mailbox.spin():
            if self._sleep(mailbox):
                return self.receive_frame()
        if self._frames < mailbox.frames:  # sent before the command
            return self.receive_frame()
        self._by_mailbox = True
        return mailbox.take(), None

    def receive_frame(self) -> tuple[Any, int | None]:
        """Wait for the next message that does not come by mailbox."""
        self._frames += 1
        self._by_mailbox = False
        return self._receiver.receive()

    def _sleep(self, mailbox: WorkerPost) -> bool:
        """Sleep until something has come, or a while; tell whether there is a frame to receive."""
        mailbox.sleep(True)
        try:
            # Looked at again after the sleep is announced: who wrote before saw nobody to wake.
            ready = [] if mailbox.pending() else self._poll.poll(1000 * SLEEP_SECONDS)
        finally:
            mailbox.sleep(False)
        return any(descriptor == self._end.fileno() for descriptor, _ in ready)

    def fileno(self) -> int:
        return self._end.fileno()

    def reply(self, message: Any) -> None:
        """Answer the master."""
        if self._by_mailbox and self._mailbox is not None and self._mailbox.reply(message):
            return
        send(self._end, encode(message, self._outbox))
        self._outbox.sent()
