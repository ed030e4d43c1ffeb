"""Words that all ranks share, and the barrier built on them.

Every word has one writer, so no atomic operation is needed: a rank announces its own arrival
and its own failure, and reads those of the others. Doorbells (eventfds) only wake a sleeping
rank up; what is true stands in the words.

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

ABANDONED = -1  # instead of a command's number: this rank comes to no barrier of any command

STEPS_PER_COMMAND = 1 << 24
SLEEP_SECONDS = 0.1  # a lost wake-up costs this much at most


class ControlBlock:
    """The shared words, new or of a descriptor: per rank its arrival, failure, sleep, phase and header."""

    def __init__(self, n_ranks: int, descriptor: int | None = None):
        self.n_ranks = n_ranks
        nbytes = 8 * RANK_WORDS * n_ranks
        self.segment = Segment.create(nbytes) if descriptor is None else Segment.attach(descriptor, nbytes)
        self.words = self.segment.words(RANK_WORDS * n_ranks)
        places = [self.index(rank, PHASE) for rank in range(n_ranks)]
        self.phases = [self.words[place : place + 1] for place in places]  # one word each

    @staticmethod
    def index(rank: int, field: int) -> int:
        """Return the index in ``words`` of a field of a rank."""
        return rank * RANK_WORDS + field

    def get(self, rank: int, field: int) -> int:
        return self.words[rank * RANK_WORDS + field]

    def set(self, rank: int, field: int, value: int) -> None:
        self.words[rank * RANK_WORDS + field] = value

    @staticmethod
    def header_at(rank: int) -> int:
        """Return where in ``words`` the header of a rank begins."""
        return rank * RANK_WORDS + LINE

    def header(self, rank: int) -> memoryview:
        """Words in which ``rank`` describes its part of a collective."""
        start = self.header_at(rank)
        return self.words[start : start + HEADER_WORDS]

    def phase(self, rank: int) -> str:
        return PHASES[self.phases[rank][0]]

    def close(self) -> None:
        for words in (self.words, *self.phases):
            words.release()
        self.segment.close()


class Doorbells:
    """One eventfd per rank, inherited by all; ``bells`` are those that another process has made."""

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
    """Wait for all ranks of a command, unless one of them fails or dies; the `Peers` of a rank.

    ``lives`` are descriptors that become readable when a process this rank depends on dies: ``on_death`` is
    called with such a one, and raises. ``on_late`` is called now and then with the ranks that are late, and
    raises to give up.

    It meets at one machine: ``place`` is the rank's index into the words of that.
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
        self.leaders: Leaders | None = None  # of all machines, where this rank stands for its own
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
        """Start a command: tickets of an aborted one can no longer match."""
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
        """Return once ``descriptor`` is readable; raise `Aborted` if a rank failed, so nothing will come."""
        readable = select.poll()
        readable.register(descriptor, select.POLLIN)
        while not readable.poll(1000 * SLEEP_SECONDS):
            failed = [self.control.get(other, FAILED) for other in self._others]
            # Looked at again: what was sent before the failure has come by now.
            if (self._command in failed or ABANDONED in failed) and not readable.poll(0):
                raise Aborted

    def look(self) -> None:
        """Look around once, while this rank waits for something else than the others' words.

        Raises `Aborted` if a rank failed in this command, so what this rank waits for may never come.
        """
        self._wake_up(self._poll.poll(0))
        failed = [self.control.get(other, FAILED) for other in self._others]
        if self._command in failed or ABANDONED in failed:
            raise Aborted
        self._on_late(self._waited_for())

    def _waited_for(self) -> list[int]:
        return [self._ranks[other] for other in self._others]

    def wait(self) -> None:
        """Return once every rank has called ``wait`` equally often in this command.

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
        late = [other for other in self._others if get(other, ARRIVED) < ticket]
        if not late:
            return True
        # A rank may come here and fail later: arrival counts first.
        if any(get(other, FAILED) == self._command for other in late):
            raise Aborted
        if any(get(other, FAILED) == ABANDONED for other in self._others):
            raise Aborted
        return False

    def _spun(self, words: memoryview, ticket: int) -> bool:
        """Look for the others until they are here, or for a moment; failures are looked for later."""
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
            # Looked at again after SLEEPING is up: whoever arrived before saw no sleeper to wake.
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
    """The barrier of a rank that stands for its machine: what it begins and fails, other machines hear of."""

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
