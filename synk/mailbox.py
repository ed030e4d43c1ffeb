"""Small messages through shared memory: no system call where both sides are awake.

The master writes a command into the one box that all workers read, each worker its reply into a box of its
own. A box has one writer, who writes the number last; a reader spins on it for a moment and then sleeps
until its doorbell rings. What does not fit goes over the channel.

    Commands -> MasterPost.send ... WorkerPost.next -> serve -> WorkerPost.reply ... MasterPost.replies

Imports ``messages``, ``shm``, ``sync`` and the standard library.
"""

from __future__ import annotations

import pickle
import time
from typing import Any, NamedTuple

from synk import messages
from synk.shm import Segment
from synk.sync import SLEEPING, ControlBlock, Doorbells

NUMBER, NBYTES, FRAMES = range(3)
HEAD_WORDS = 8  # a cache line
AREA = 1 << 14  # bytes of the longest message
STRIDE = 8 * HEAD_WORDS + AREA
REMEMBERED = 64  # commands whose pickle a worker knows; training repeats one

IDLE_SPIN_SECONDS = 200e-6  # between commands: a script that trains is back by then


class Mailboxes:
    """The boxes of a run: the command's, and one for each worker's replies."""

    def __init__(self, n_ranks: int):
        self._segment = Segment.create(STRIDE * n_ranks)
        self._segment.seal()  # ranks inherit the mapping
        words = self._segment.words(STRIDE * n_ranks // 8)
        space = words.cast("B")
        self.boxes = [
            Mailbox(words[rank * STRIDE // 8 :][:HEAD_WORDS], space[rank * STRIDE :][8 * HEAD_WORDS : STRIDE])
            for rank in range(n_ranks)
        ]

    def close(self) -> None:
        for box in self.boxes:
            box.release()
        self._segment.close()


class Mailbox:
    """One message at a time, from one writer."""

    def __init__(self, words: memoryview, area: memoryview):
        self._words = words
        self._area = area

    @property
    def number(self) -> int:
        """Of the message that is in the box."""
        return self._words[NUMBER]

    @property
    def frames(self) -> int:
        """How many frames of the channel came before the message."""
        return self._words[FRAMES]

    def write(self, number: int, payload: bytes, frames: int = 0) -> None:
        self._area[: len(payload)] = payload
        self._words[NBYTES] = len(payload)
        self._words[FRAMES] = frames
        self._words[NUMBER] = number  # last: now it may be read

    def read(self) -> bytes:
        return bytes(self._area[: self._words[NBYTES]])

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._area.release()


class Pickled(NamedTuple):
    """The steps of a command and their pickle; training sends the same ones again and again."""

    kinds: list[type]
    steps: tuple[Any, ...]
    payload: bytes


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
        self._last = Pickled([], (), b"")
        self._number = 0
        self._missing: list[int] = []

    def fileno(self) -> int:
        """Descriptor that becomes readable when a reply has come to a sleeping master."""
        return self._bells.fileno(0)

    def send(self, command: messages.Run, frames: int) -> bool:
        """Put a command into the box, unless it is too long."""
        payload = self._pickled(command.steps)
        if len(payload) > AREA:
            return False
        self._number = command.number
        self._missing = list(range(1, self._control.n_ranks))
        self._command.write(command.number, payload, frames)
        for rank in self._missing:
            if self._control.get(rank, SLEEPING):
                self._bells.ring(rank)
        return True

    def _pickled(self, steps: tuple[Any, ...]) -> bytes:
        # Steps of different classes may be equal: they are tuples.
        kinds = [type(step) for step in steps]
        if kinds != self._last.kinds or steps != self._last.steps:
            self._last = Pickled(kinds, steps, pickle.dumps(steps, protocol=5))
        return self._last.payload

    def spin(self) -> None:
        """Return when all replies are there, or after a moment."""
        deadline = time.monotonic() + self._spin
        while not self._complete() and time.monotonic() < deadline:
            pass

    def _complete(self) -> bool:
        return all(self._replies[rank - 1].number == self._number for rank in self._missing)

    def arrived(self) -> list[tuple[int, bytes]]:
        """Return the replies that have come since, with their ranks."""
        there = [rank for rank in self._missing if self._replies[rank - 1].number == self._number]
        if there:
            self._missing = [rank for rank in self._missing if rank not in there]
        return [(rank, self._replies[rank - 1].read()) for rank in there]

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
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def fileno(self) -> int:
        """Descriptor that becomes readable when a command has come to a sleeping worker."""
        return self._bells.fileno(self._rank)

    def pending(self) -> bool:
        """Tell whether there is a command that `take` has not returned."""
        return self._command.number != self._last

    @property
    def frames(self) -> int:
        """How many frames of the channel to read before the command."""
        return self._command.frames

    def spin(self) -> bool:
        """Wait for a command for a moment; tell whether one has come."""
        deadline = time.monotonic() + self._spin
        while not self.pending():
            if time.monotonic() >= deadline:
                return False
        return True

    def sleep(self, asleep: bool) -> None:
        """Say whether the next command must ring."""
        self._control.set(self._rank, SLEEPING, asleep)
        if not asleep:
            self._bells.quiet(self._rank)

    def take(self) -> messages.Run:
        """Return the command."""
        self._last = self._command.number
        payload = self._command.read()
        steps = self._known.get(payload)
        if steps is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            steps = self._known[payload] = pickle.loads(payload)
        return messages.Run(self._last, steps)

    def reply(self, message: messages.Reply) -> bool:
        """Put the reply to the command that was taken last into the box, unless it is too long."""
        payload = _pickled(message)
        if payload is None:
            return False
        self._reply.write(self._last, payload)
        if self._control.get(0, SLEEPING):
            self._bells.ring(0)
        return True


def _pickled(message: Any) -> bytes | None:
    """Return the pickle of a message, arrays included, or None if it is too long for a box."""
    arrays: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
    if arrays:
        if sum(array.raw().nbytes for array in arrays) > AREA:
            return None
        payload = pickle.dumps(message, protocol=5)
    return payload if len(payload) <= AREA else None
