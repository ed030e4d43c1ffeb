"""Small messages through shared memory: no system call where both sides are awake.

The master writes a command into the one box that all workers read, each worker its reply into a box of its
own. A box has one writer, who writes the number last; a reader spins on it for a moment and then sleeps
until its doorbell rings. What does not fit goes over the channel.

    Commands -> MasterPost.send ... WorkerPost.next -> serve -> WorkerPost.reply ... MasterPost.replies

Imports ``messages``, ``replies``, ``shm``, ``sync`` and the standard library.
"""

from __future__ import annotations

import pickle
import time
from typing import Any, NamedTuple

from synk import messages
from synk.memory.shm import Segment
from synk.wire.replies import packed
from synk.wire.sync import SLEEPING, ControlBlock, Doorbells

NUMBER, NBYTES, FRAMES, EDITION = range(4)
HEAD_WORDS = 8  # a cache line
AREA = 1 << 14  # bytes of the longest message
STRIDE = 8 * HEAD_WORDS + AREA
REMEMBERED = 64  # commands whose pickle a worker knows; training repeats one

IDLE_SPIN_SECONDS = 200e-6  # between commands: a script that trains is back by then


class Mailboxes:
    """The boxes of a run: the command's, and one for each worker's replies.

    Parameters
    ----------
    n_ranks : int
    descriptor : int, optional
        Of the boxes that another process has made; new ones by default.
    """

    def __init__(self, n_ranks: int, descriptor: int | None = None):
        nbytes = STRIDE * n_ranks
        self._segment = Segment.create(nbytes) if descriptor is None else Segment.attach(descriptor, nbytes)
        words = self._segment.words(STRIDE * n_ranks // 8)
        space = words.cast("B")
        self.boxes = [
            Mailbox(words[rank * STRIDE // 8 :][:HEAD_WORDS], space[rank * STRIDE :][8 * HEAD_WORDS : STRIDE])
            for rank in range(n_ranks)
        ]

    @property
    def descriptor(self) -> int:
        """What other processes attach by, until `seal`."""
        return self._segment.descriptor

    def seal(self) -> None:
        """Close the descriptor; processes that are forked inherit the mapping."""
        self._segment.seal()

    def close(self) -> None:
        for box in self.boxes:
            box.release()
        self._segment.close()


class Mailbox:
    """One message at a time, from one writer."""

    def __init__(self, words: memoryview, area: memoryview):
        self.words = words  # number, bytes, frames of the channel that came before, edition of the payload
        self._area = area
        self._payload: bytes | None = None  # that was written last

    def write(self, number: int, payload: bytes, frames: int = 0) -> None:
        """Put a message into the box; a payload that is there already stays."""
        words = self.words
        if payload is not self._payload and payload != self._payload:
            self._area[: len(payload)] = payload
            words[NBYTES] = len(payload)
            words[EDITION] += 1
            self._payload = payload
        words[FRAMES] = frames
        words[NUMBER] = number  # last: now it may be read

    def read(self) -> bytes:
        return bytes(self._area[: self.words[NBYTES]])

    def release(self) -> None:
        """Let go of the memory."""
        self.words.release()
        self._area.release()


class Memory(NamedTuple):
    """What the last message in a box was, while its edition is the same."""

    edition: int
    value: Any


class MasterPost:
    """The master's side.

    Parameters
    ----------
    mailboxes, control, bells
        Shared by all ranks.
    spin : float
        Seconds to spin for replies before sleeping.
    """

    def __init__(self, mailboxes: Mailboxes, control: ControlBlock, bells: Doorbells, spin: float):
        self._command, *self._replies = mailboxes.boxes
        self._control = control
        self._bells = bells
        self._spin = spin
        self._kinds: list[type] = []
        self._steps: tuple[Any, ...] = ()
        self._payload = b""
        self._number = 0
        self._missing: list[int] = []
        self._workers = list(range(1, control.n_ranks))
        self._known = [Memory(0, None)] * len(self._workers)

    def fileno(self) -> int:
        """Descriptor that becomes readable when a reply has come to a sleeping master."""
        return self._bells.fileno(0)

    def send(self, command: messages.Run, frames: int) -> bool:
        """Put a command into the box, unless it is too long."""
        payload = self._pickled(command.steps)
        if len(payload) > AREA:
            return False
        self._number = command.number
        self._missing = self._workers
        self._command.write(command.number, payload, frames)
        for rank in self._workers:
            if self._control.get(rank, SLEEPING):
                self._bells.ring(rank)
        return True

    def _pickled(self, steps: tuple[Any, ...]) -> bytes:
        """Return the pickle of steps; training sends the same ones again and again."""
        # Steps of different classes may be equal: they are tuples.
        kinds = list(map(type, steps))
        if steps is not self._steps and (kinds != self._kinds or steps != self._steps):
            self._kinds, self._steps, self._payload = kinds, steps, pickle.dumps(steps, protocol=5)
        return self._payload

    def spin(self) -> None:
        """Return when all replies are there, or after a moment."""
        number, clock = self._number, time.monotonic
        deadline = clock() + self._spin
        for rank in self._missing:
            words = self._replies[rank - 1].words
            while words[NUMBER] != number:
                if clock() >= deadline:
                    return

    def arrived(self) -> list[tuple[int, Any]]:
        """Return the replies that have come since, as they are packed, with their ranks."""
        if not self._missing:
            return []
        number, boxes = self._number, self._replies
        there = [rank for rank in self._missing if boxes[rank - 1].words[NUMBER] == number]
        self._missing = [rank for rank in self._missing if rank not in there]
        return [(rank, self._read(rank)) for rank in there]

    def _read(self, rank: int) -> bytes:
        """Return a reply's bytes: the same object while they are the same."""
        box, known = self._replies[rank - 1], self._known[rank - 1]
        edition = box.words[EDITION]
        if edition != known.edition:
            known = self._known[rank - 1] = Memory(edition, box.read())
        payload: bytes = known.value
        return payload

    def sleep(self, asleep: bool) -> None:
        """Say whether the next reply must ring."""
        self._control.set(0, SLEEPING, asleep)
        if not asleep:
            self._bells.quiet(0)


class WorkerPost:
    """A worker's side."""

    def __init__(self, rank: int, mailboxes: Mailboxes, control: ControlBlock, bells: Doorbells, spin: float):
        self._rank = rank
        self._command, self._reply = mailboxes.boxes[0], mailboxes.boxes[rank]
        self._control = control
        self._bells = bells
        self._spin = spin
        self._last = 0
        self._now = Memory(0, ())
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def fileno(self) -> int:
        """Descriptor that becomes readable when a command has come to a sleeping worker."""
        return self._bells.fileno(self._rank)

    def pending(self) -> bool:
        """Tell whether there is a command that `take` has not returned."""
        return self._command.words[NUMBER] != self._last

    @property
    def frames(self) -> int:
        """How many frames of the channel to read before the command."""
        return self._command.words[FRAMES]

    def spin(self) -> bool:
        """Wait for a command for a moment; tell whether one has come."""
        words, last, clock = self._command.words, self._last, time.monotonic
        deadline = clock() + self._spin
        while words[NUMBER] == last:
            if clock() >= deadline:
                return False
        return True

    def sleep(self, asleep: bool) -> None:
        """Say whether the next command must ring."""
        self._control.set(self._rank, SLEEPING, asleep)
        if not asleep:
            self._bells.quiet(self._rank)

    def take(self) -> messages.Run:
        """Return the command."""
        words = self._command.words
        self._last = words[NUMBER]
        if words[EDITION] != self._now.edition:
            self._now = Memory(words[EDITION], self._loaded(self._command.read()))
        return messages.Run(self._last, self._now.value)

    def _loaded(self, payload: bytes) -> tuple[Any, ...]:
        steps = self._known.get(payload)
        if steps is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            steps = self._known[payload] = pickle.loads(payload)
        return steps

    def reply(self, message: messages.Reply) -> bool:
        """Put the reply to the command that was taken last into the box, unless it is too long."""
        payload = packed(message, AREA)
        if payload is None:
            return False
        self._reply.write(self._last, payload)
        if self._control.get(0, SLEEPING):
            self._bells.ring(0)
        return True
