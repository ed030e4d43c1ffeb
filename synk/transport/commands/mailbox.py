"""Exchange small messages through shared memory, without a system call if the receiver is awake.

The master writes a command into one box that all workers read, and each worker writes its reply into its own
box. The writer of a box writes the command's number last. A reader looks for that number again and again for
a moment, and then sleeps until its doorbell rings. Messages that are too long go over the channel.

    Commands -> MasterPost.send ... WorkerPost.take -> serve -> WorkerPost.reply ... MasterPost.arrived
"""

from __future__ import annotations

from typing import Any, NamedTuple

from synk.transport.commands.replies import decode_reply, encode_reply
from synk.transport.commands.spin import Spin
from synk.transport.commands.steps import KnownSteps, PickledSteps
from synk.transport.commands.sync import SLEEPING, ControlBlock, Doorbells
from synk.transport.memory.shm import Segment
from synk.values import messages

NUMBER, NBYTES, FRAMES, EDITION, START, STOP = range(6)
HEAD_WORDS = 8  # a cache line
AREA = 1 << 14  # bytes of the longest message
STRIDE = 8 * HEAD_WORDS + AREA


class Mailboxes:
    """All boxes of a run, in shared memory: one for commands, and one for each worker's replies.

    With a ``descriptor`` they are in the memory behind it, which another process made; without one they are
    new.
    """

    def __init__(self, n_ranks: int, descriptor: int | None = None):
        nbytes = STRIDE * n_ranks
        self.segment = Segment.create(nbytes) if descriptor is None else Segment.attach(descriptor, nbytes)
        words = self.segment.words(STRIDE * n_ranks // 8)
        space = words.cast("B")
        self.boxes = [
            Mailbox(words[rank * STRIDE // 8 :][:HEAD_WORDS], space[rank * STRIDE :][8 * HEAD_WORDS : STRIDE])
            for rank in range(n_ranks)
        ]

    def close(self) -> None:
        for box in self.boxes:
            box.release()
        self.segment.close()


class Mailbox:
    """A box in shared memory that holds one message, and has one writer."""

    def __init__(self, words: memoryview, area: memoryview):
        # The command's number, bytes of the payload, frames that the channel carried before, the payload's
        # edition (how many different ones were written), and the command's rows.
        self.words = words
        self.area = area
        self._payload: bytes | None = None  # the payload that was written last

    def write(self, number: int, payload: bytes, frames: int = 0) -> None:
        """Put a message into the box; a payload that equals the last one is not copied again."""
        words = self.words
        if payload != self._payload:
            self.area[: len(payload)] = payload
            words[NBYTES] = len(payload)
            words[EDITION] += 1
            self._payload = payload
        words[FRAMES] = frames
        words[NUMBER] = number  # this comes last: readers wait for the number

    def content(self) -> memoryview:
        """Return the message in the box, which does not change until the next one is written."""
        return self.area[: self.words[NBYTES]]

    def release(self) -> None:
        """Release the views of the memory, so that it can be unmapped."""
        self.words.release()
        self.area.release()


class LastSteps(NamedTuple):
    """The steps of the last command in a box; they are right as long as the box has the same edition."""

    edition: int
    steps: tuple[Any, ...]


class MasterPost:
    """The master's side: it sends commands and takes replies.

    If ``spins``, the master looks for replies again and again for a moment before it sleeps.
    """

    def __init__(self, mailboxes: Mailboxes, control: ControlBlock, bells: Doorbells, spins: bool):
        self._command, *self._replies = mailboxes.boxes
        self._control = control
        self._bells = bells
        self.spin = Spin(spins)
        self.pickled = PickledSteps()
        self._number = 0
        self._workers = list(range(1, control.n_ranks))
        self._missing: list[int] = []  # ranks whose replies have not been seen

    def fileno(self) -> int:
        """Return the master's doorbell: it becomes readable when a reply comes while the master sleeps."""
        return self._bells.fileno(0)

    def send(self, command: messages.Command, payload: bytes, frames: int) -> bool:
        """Put a command into the box, and tell whether it fitted; `wake` then wakes up workers that sleep.

        ``payload`` is the pickle of the command's steps; ``frames`` is how many frames of the channel workers
        read before the command.
        """
        if len(payload) > AREA:
            self._missing = []
            return False
        self._number = command.number
        self._missing = self._workers
        words = self._command.words
        words[START], words[STOP] = command.start, command.stop
        self._command.write(command.number, payload, frames)
        return True

    def wake(self) -> None:
        """Ring the doorbells of all workers that sleep."""
        for rank in self._workers:
            if self._control.get(rank, SLEEPING):
                self._bells.ring(rank)

    def spun(self) -> bool:
        """Look for replies for a moment; return whether all have come.

        It is False, too, after `arrived` was called for this command.
        """
        if self._missing is not self._workers:
            return False
        number, spin = self._number, self.spin
        for box in self._replies:
            words = box.words
            for _ in range(spin.looks):
                if words[NUMBER] == number:
                    break
            else:
                return False
        if spin.doubted:
            spin.hit()
        return True

    def arrived(self) -> list[int]:
        """Return the ranks whose replies to the command have come since the last call."""
        if not self._missing:
            return []
        number, boxes = self._number, self._replies
        there = [rank for rank in self._missing if boxes[rank - 1].words[NUMBER] == number]
        self._missing = [rank for rank in self._missing if rank not in there]
        return there

    def reply(self, rank: int) -> messages.Reply:
        """Return the reply of a rank that `arrived` has returned; call it before the next command is sent."""
        return _reply(self._replies[rank - 1])

    def replies(self) -> list[messages.Reply]:
        """Return the replies of all workers; call it only when all have come."""
        return [_reply(box) for box in self._replies]

    def sleep(self, asleep: bool) -> None:
        """Write to shared memory whether the master sleeps: then workers that reply ring its doorbell."""
        self._control.set(0, SLEEPING, asleep)
        if not asleep:
            self._bells.quiet(0)


def _reply(box: Mailbox) -> messages.Reply:
    return decode_reply(box.content())


class WorkerPost:
    """A worker's side: it takes commands, and puts its replies into a box of its own."""

    def __init__(self, rank: int, mailboxes: Mailboxes, control: ControlBlock, bells: Doorbells, spins: bool):
        self._rank = rank
        self._command, self._reply = mailboxes.boxes[0], mailboxes.boxes[rank]
        self._control = control
        self._bells = bells
        self.spin = Spin(spins, moves=True)
        self._last = 0
        self._now = LastSteps(0, ())
        self._known = KnownSteps()

    def fileno(self) -> int:
        """Return this worker's doorbell: it becomes readable when a command comes while the worker sleeps."""
        return self._bells.fileno(self._rank)

    def pending(self) -> bool:
        """Tell whether there is a command that `take` has not returned."""
        return self._command.words[NUMBER] != self._last

    @property
    def frames(self) -> int:
        """The number of frames that a worker must read from the channel before the command."""
        return self._command.words[FRAMES]

    def spun(self) -> bool:
        """Look for a command for a moment; return whether one has come."""
        words, last = self._command.words, self._last
        for _ in range(self.spin.looks):
            if words[NUMBER] != last:
                if self.spin.doubted:
                    self.spin.hit()
                return True
        return False

    def sleep(self, asleep: bool) -> None:
        """Write to shared memory whether this worker sleeps: then the master rings its doorbell."""
        self._control.set(self._rank, SLEEPING, asleep)
        if not asleep:
            self._bells.quiet(self._rank)

    def steps_of(self, payload: bytes) -> tuple[Any, ...]:
        """Return the steps of a command from their pickle; the same bytes are unpickled once only."""
        return self._known.of(payload)

    def take(self) -> messages.Command:
        """Return the command in the box; steps are unpickled only if the payload is a new one."""
        words = self._command.words
        self._last = words[NUMBER]
        if words[EDITION] != self._now.edition:
            self._now = LastSteps(words[EDITION], self.steps_of(bytes(self._command.content())))
        return messages.Command(self._last, self._now.steps, words[START], words[STOP])

    def reply(self, message: messages.Reply) -> bool:
        """Put the reply to the last command into the box; return False, and do nothing, if it is too long."""
        payload = encode_reply(message, AREA)
        if payload is None:
            return False
        self._reply.write(self._last, payload)
        if self._control.get(0, SLEEPING):
            self._bells.ring(0)
        return True
