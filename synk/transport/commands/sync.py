"""The control words that all ranks of a machine share, and the barrier built on them.

Every word has one writer, so no atomic operation is needed: a rank writes its own arrival and its own
failure, and reads those of the others. Doorbells (eventfds) only wake a sleeping rank up, which then reads
the words.

    command number -> Barrier.begin -> wait, wait, ... (or fail) -> next command
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Sequence
from typing import Any

from synk.transport.commands.deaths import Deaths
from synk.transport.commands.interfaces import Aborted, Leaders, OnLate
from synk.transport.commands.spin import Spin
from synk.transport.memory.shm import Segment
from synk.values.machine import Machine
from synk.values.messages import PHASES

LINE = 8  # words: each rank writes to cache lines of its own
ARRIVED, FAILED, SLEEPING, PHASE, DELIVERED = range(5)
HEADER_WORDS = 40
RANK_WORDS = LINE + HEADER_WORDS

ABANDONED = -1  # in FAILED, instead of a command's number: this rank comes to no barrier of any command

STEPS_PER_COMMAND = 1 << 24
SLEEP_SECONDS = 0.1  # a lost wake-up costs this much at most


class ControlBlock:
    """The control words: each rank's arrival, failure, sleep, phase, and header of a collective.

    They are in new shared memory, or in that of another process behind ``descriptor``.
    """

    def __init__(self, n_ranks: int, descriptor: int | None = None):
        self.n_ranks = n_ranks
        nbytes = 8 * RANK_WORDS * n_ranks
        self.segment = Segment.create(nbytes) if descriptor is None else Segment.attach(descriptor, nbytes)
        self.words = self.segment.words(RANK_WORDS * n_ranks)
        places = [self.index(rank, PHASE) for rank in range(n_ranks)]
        self.phases = [self.words[place : place + 1] for place in places]  # one word each

    @staticmethod
    def index(rank: int, field: int) -> int:
        """Return the index in ``words`` of a field, such as ARRIVED, of a rank."""
        return rank * RANK_WORDS + field

    def get(self, rank: int, field: int) -> int:
        return self.words[rank * RANK_WORDS + field]

    def set(self, rank: int, field: int, value: int) -> None:
        self.words[rank * RANK_WORDS + field] = value

    @staticmethod
    def header_at(rank: int) -> int:
        """Return the index in ``words`` at which the header of a rank begins."""
        return rank * RANK_WORDS + LINE

    def header(self, rank: int) -> memoryview:
        """Return the words in which ``rank`` describes its part of a collective."""
        start = self.header_at(rank)
        return self.words[start : start + HEADER_WORDS]

    def phase(self, rank: int) -> str:
        return PHASES[self.phases[rank][0]]

    def close(self) -> None:
        for words in (self.words, *self.phases):
            words.release()
        self.segment.close()


class Doorbells:
    """An eventfd for each rank, to wake the rank up: new ones, or ``bells``, made by another process."""

    def __init__(self, n_ranks: int, bells: Sequence[int] = ()):
        self._bells = list(bells)
        if bells:
            return
        try:
            for _ in range(n_ranks):
                self._bells.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        except OSError:  # no descriptor left
            self.close()
            raise

    def ring(self, rank: int) -> None:
        os.eventfd_write(self._bells[rank], 1)

    def fileno(self, rank: int) -> int:
        return self._bells[rank]

    def quiet(self, rank: int) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody rang
            os.eventfd_read(self._bells[rank])

    def close(self) -> None:
        for bell in self._bells:
            os.close(bell)
        self._bells = []


class Barrier:
    """The barrier at which a rank waits for all ranks of its machine; it implements `Peers`.

    A wait also ends when another rank fails, or when one of ``deaths`` is found. ``on_late`` is called now
    and then with the ranks that are late, and raises to give up. ``place`` is the number of this rank on its
    machine.
    """

    def __init__(
        self,
        control: ControlBlock,
        bells: Doorbells,
        place: int,
        spins: bool,
        deaths: Deaths,
        on_late: OnLate,
        machine: Machine | None = None,
    ):
        self.place, self.n_places, self.machine = place, control.n_ranks, machine
        self.leaders: Leaders | None = None  # of all machines, if this rank is the leader of its own
        self.rank = place if machine is None else machine.first + place
        self.n_ranks = control.n_ranks if machine is None else machine.n_ranks
        self.phase = control.phases[place]
        self.control = control
        self._bells = bells
        self._others = [other for other in range(control.n_ranks) if other != place]
        self._ranks = range(control.n_ranks) if machine is None else machine.ranks
        self._arrival = control.index(place, ARRIVED)
        self._arrivals = [control.index(other, ARRIVED) for other in self._others]
        self._sleepers = [(other, control.index(other, SLEEPING)) for other in self._others]
        self._spin = Spin(spins)
        self._deaths = deaths
        self._on_late = on_late
        self._command = 0
        self._ticket = 0
        self._poll = select.poll()
        self._bell = bells.fileno(place)
        self._poll.register(self._bell, select.POLLIN)
        deaths.register(self._poll)

    def begin(self, command: int) -> None:
        """Start a command and number its barriers anew, so that those of an aborted one do not count."""
        self._command = command
        self._ticket = command * STEPS_PER_COMMAND

    def fail(self) -> None:
        """Tell all ranks that this one will not come to any further barrier of this command."""
        if self.control.get(self.place, FAILED) != ABANDONED:
            self._tell_failed(self._command)

    def abandon(self) -> None:
        """Tell all ranks that this one will not come to any further barrier at all."""
        self._tell_failed(ABANDONED)

    def _tell_failed(self, command: int) -> None:
        self.control.set(self.place, FAILED, command)
        for other in self._others:
            self._bells.ring(other)

    def wait_for(self, descriptor: int) -> None:
        """Wait until ``descriptor`` is readable; raise `Aborted` if a rank has failed in this command."""
        readable = select.poll()
        readable.register(descriptor, select.POLLIN)
        while not readable.poll(1000 * SLEEP_SECONDS):
            failed = [self.control.get(other, FAILED) for other in self._others]
            # Poll once more: what was sent before the failure has come by now.
            if (self._command in failed or ABANDONED in failed) and not readable.poll(0):
                raise Aborted

    def look(self) -> None:
        """Check once for deaths, failures and late ranks, while this rank waits for something else.

        Raises `Aborted` if a rank has failed in this command, so that the wait might never end.
        """
        self._wake_up(self._poll.poll(0))
        failed = [self.control.get(other, FAILED) for other in self._others]
        if self._command in failed or ABANDONED in failed:
            raise Aborted
        self._on_late(self._waited_for())

    def _waited_for(self) -> list[int]:
        return [self._ranks[other] for other in self._others]

    def wait(self) -> None:
        """Wait until every rank has called ``wait`` as often in this command as this one.

        Raises `Aborted` if a rank failed before it came here.
        """
        self._ticket += 1
        words = self.control.words
        words[self._arrival] = self._ticket
        for other, sleeping in self._sleepers:
            if words[sleeping]:
                self._bells.ring(other)
        if not self._spun(words, self._ticket):
            self._sleep_until_complete()

    def _sleep_until_complete(self) -> None:
        began = time.monotonic()
        while not self._complete():
            self._sleep()
            late = self._late()
            if late:
                self._on_late(late)
        self._spin.missed(time.monotonic() - began)

    def _late(self) -> list[int]:
        get = self.control.get
        return [self._ranks[other] for other in self._others if get(other, ARRIVED) < self._ticket]

    def _complete(self) -> bool:
        get, ticket = self.control.get, self._ticket
        # Only a rank that has not arrived counts as failed, since one may arrive here and fail later: so who
        # failed is read before who arrived.
        failed = [other for other in self._others if get(other, FAILED) == self._command]
        late = [other for other in self._others if get(other, ARRIVED) < ticket]
        if not late:
            return True
        if not set(late).isdisjoint(failed):
            raise Aborted
        if any(get(other, FAILED) == ABANDONED for other in self._others):
            raise Aborted
        return False

    def _spun(self, words: memoryview, ticket: int) -> bool:
        """Spin until all others have arrived, or for a moment; return whether they have."""
        spin = self._spin
        for arrival in self._arrivals:
            for _ in range(spin.looks):
                if words[arrival] >= ticket:
                    break
            else:
                return False
        if spin.doubted:
            spin.hit()
        return True

    def _sleep(self) -> None:
        self.control.set(self.place, SLEEPING, 1)
        try:
            # A rank that arrived before SLEEPING was written rang no doorbell, so look once more.
            if self._complete():
                return
            self._wake_up(self._poll.poll(1000 * SLEEP_SECONDS))
        finally:
            self.control.set(self.place, SLEEPING, 0)

    def _wake_up(self, readable: list[tuple[int, int]]) -> None:
        ready = [descriptor for descriptor, _ in readable]
        if self._bell in ready:
            self._bells.quiet(self.place)
        self._deaths.report(ready)


class LeaderBarrier(Barrier):
    """The barrier of a machine's leader, which also tells other machines of commands that begin or fail."""

    def __init__(self, leaders: Leaders, *words: Any):
        super().__init__(*words)
        self.leaders = self._leaders = leaders
        self._elsewhere = [rank for rank in range(self.n_ranks) if rank not in self._ranks]

    def _waited_for(self) -> list[int]:
        return self._elsewhere

    def begin(self, command: int) -> None:
        super().begin(command)
        self._leaders.begin(command)

    def fail(self) -> None:
        super().fail()
        self._leaders.fail()

    def abandon(self) -> None:
        super().abandon()
        self._leaders.fail()
