import contextlib
import itertools
import os
import select
import subprocess
import threading
import time

import pytest

from support.transport.parts import make_barrier, on_threads
from synk.transport.commands import sync
from synk.transport.commands.sync import (
    ARRIVED,
    FAILED,
    HEADER_WORDS,
    PHASE,
    SLEEPING,
    Aborted,
    ControlBlock,
    Doorbells,
)
from synk.transport.processes.process import Process
from synk.values.messages import COLLECTIVE, COMPILING, COMPUTING, IDLE

LONG = 60.0  # seconds: longer than any test may take
DEADLINE = 30.0  # seconds for threads that would wait forever if they were left waiting
ROUNDS = 200


@contextlib.contextmanager
def shared(n_ranks):
    """Lend the words and bells that ``n_ranks`` ranks share."""
    control, bells = ControlBlock(n_ranks), Doorbells(n_ranks)
    yield control, bells
    bells.close()
    control.close()


class StillWaiting(Exception):
    """Raised in place of going to sleep."""


@contextlib.contextmanager
def impatient(control, bells):
    """Lend barriers in command 1, one a rank; their ``wait`` raises StillWaiting instead of sleeping."""

    def refuse(descriptor):
        raise StillWaiting

    ready = os.eventfd(1)
    barriers = [
        make_barrier(control, bells, rank, lives=[ready], on_death=refuse) for rank in range(control.n_ranks)
    ]
    for barrier in barriers:
        barrier.begin(1)
    yield barriers
    os.close(ready)


@pytest.mark.parametrize("spins", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5])
def test_ranks_leave_a_barrier_when_all_have_come(monkeypatch, n_ranks, spins):
    # A rank that is not woken up would now sleep beyond the deadline.
    monkeypatch.setattr(sync, "SLEEP_SECONDS", LONG)
    at = [0] * n_ranks

    def work(rank):
        barrier = make_barrier(control, bells, rank, spins=spins)
        for round in range(1, ROUNDS + 1):
            if round % 50 == 1:
                barrier.begin(1 + round // 50)
            at[rank] = round
            if (round + rank) % n_ranks == 0:
                time.sleep(0)  # let the others go first
            barrier.wait()
            if at != [round] * n_ranks:
                return f"round {round}: {at}"
            barrier.wait()
        return "in step"

    with shared(n_ranks) as (control, bells):
        assert on_threads(n_ranks, work) == ["in step"] * n_ranks
        assert [control.get(rank, SLEEPING) for rank in range(n_ranks)] == [0] * n_ranks


@pytest.mark.parametrize("late", [0, 1, 2])
def test_sleepers_are_woken(monkeypatch, late):
    monkeypatch.setattr(sync, "SLEEP_SECONDS", LONG)
    with shared(3) as (control, bells):
        others = [rank for rank in range(3) if rank != late]

        def work(rank):
            barrier = make_barrier(control, bells, rank)
            barrier.begin(1)
            while rank == late and not all(control.get(other, SLEEPING) for other in others):
                time.sleep(0.001)
            if rank == late:
                time.sleep(0.05)  # for them to be in poll() indeed
            barrier.wait()

        assert on_threads(3, work) == [None] * 3


def test_a_rank_that_comes_just_before_the_sleep_is_seen(monkeypatch):
    with shared(2) as (control, bells), impatient(control, bells) as (one, other):

        def arrive_first(rank, field, value):
            if (rank, field, value) == (0, SLEEPING, 1):
                other.wait()  # finds rank 0 awake, so it rings no bell
            plain_set(rank, field, value)

        plain_set = control.set
        monkeypatch.setattr(control, "set", arrive_first)
        one.wait()


def test_a_lost_wake_up_costs_one_sleep(monkeypatch):
    monkeypatch.setattr(sync, "SLEEP_SECONDS", 0.01)
    with shared(2) as (control, bells):
        monkeypatch.setattr(bells, "ring", lambda rank: None)

        def work(rank):
            barrier = make_barrier(control, bells, rank)
            barrier.begin(1)
            if rank == 1:
                time.sleep(0.1)
            barrier.wait()

        assert on_threads(2, work) == [None] * 2


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_a_failure_lets_the_others_out(monkeypatch, n_ranks):
    monkeypatch.setattr(sync, "SLEEP_SECONDS", LONG)
    failed_at, left_at = [], []

    def work(rank):
        barrier = make_barrier(control, bells, rank)
        barrier.begin(1)
        barrier.wait()
        if rank == 1:
            while not all(control.get(other, SLEEPING) for other in range(n_ranks) if other != 1):
                time.sleep(0.001)
            failed_at.append(time.monotonic())
            barrier.fail()
        else:
            try:
                barrier.wait()
            finally:
                left_at.append(time.monotonic())

    with shared(n_ranks) as (control, bells):
        outcomes = on_threads(n_ranks, work)
        assert outcomes.pop(1) is None
        assert [type(outcome) for outcome in outcomes] == [Aborted] * (n_ranks - 1)
        assert [control.get(rank, SLEEPING) for rank in range(n_ranks)] == [0] * n_ranks
    assert max(left_at) - failed_at[0] < 1.0


def test_ranks_that_come_after_a_failure_find_it():
    with shared(2) as (control, bells):
        one, other = (make_barrier(control, bells, rank) for rank in (0, 1))
        for barrier in (one, other):
            barrier.begin(1)
        other.fail()
        for _ in range(2):
            with pytest.raises(Aborted):
                one.wait()


def test_arrival_counts_before_failure():
    with shared(2) as (control, bells), impatient(control, bells) as (one, other):
        control.set(0, FAILED, 1)
        with pytest.raises(Aborted):
            other.wait()  # rank 1 is here, rank 0 is not
        other.fail()
        one.wait()  # rank 1 came here, and failed later
        with pytest.raises(Aborted):
            one.wait()


def test_a_rank_that_arrives_and_fails_while_others_look_has_arrived(monkeypatch):
    with shared(2) as (control, bells), impatient(control, bells) as (one, other):
        get = control.get

        def arrive_and_fail(rank, field):
            value = get(rank, field)
            if (rank, field) == (1, ARRIVED) and not value:
                other.wait()
                other.fail()
            return value  # as it was before

        monkeypatch.setattr(control, "get", arrive_and_fail)
        one.wait()
        assert get(1, FAILED)


def test_tickets_of_an_aborted_command_do_not_match_the_next():
    with shared(2) as (control, bells), impatient(control, bells) as (one, other):
        for _ in range(5):
            with pytest.raises(StillWaiting):
                other.wait()
        one.fail()
        with pytest.raises(Aborted):
            other.wait()

        one.begin(2)
        # Neither the six arrivals of rank 1 nor the failure of rank 0 belong to this command.
        with pytest.raises(StillWaiting):
            one.wait()
        other.begin(2)
        other.wait()
        with pytest.raises(StillWaiting):
            other.wait()


def test_a_failure_in_an_earlier_command_does_not_abort_a_later_one():
    with shared(3) as (control, bells):
        barriers = [make_barrier(control, bells, rank) for rank in range(3)]

        def command(number, failing):
            def work(rank):
                barriers[rank].begin(number)
                barriers[rank].wait()
                if rank == failing:
                    barriers[rank].fail()
                else:
                    barriers[rank].wait()

            return [type(outcome) for outcome in on_threads(3, work)]

        for number, failing in enumerate(
            itertools.islice(itertools.cycle([0, None, 2, None, 1]), 20), start=1
        ):
            expected = [type(None) if failing in (rank, None) else Aborted for rank in range(3)]
            assert command(number, failing) == expected


def test_equally_many_waits_are_one_barrier():
    with shared(2) as (control, bells), impatient(control, bells) as (one, other):
        for _ in range(3):
            with pytest.raises(StillWaiting):
                one.wait()
        for _ in range(3):
            other.wait()
        with pytest.raises(StillWaiting):
            other.wait()


def test_a_death_ends_the_wait():
    class Dead(Exception):
        pass

    def tell(descriptor):
        raise Dead(descriptor)

    sleeper = subprocess.Popen(["sleep", "60"])
    process = Process(sleeper.pid)
    try:
        with shared(2) as (control, bells):
            barrier = make_barrier(control, bells, 0, lives=[process.fileno()], on_death=tell)
            barrier.begin(1)
            threading.Timer(0.05, sleeper.kill).start()
            with pytest.raises(Dead) as caught:
                barrier.wait()
            assert caught.value.args == (process.fileno(),)
            assert control.get(0, SLEEPING) == 0
    finally:
        sleeper.kill()
        sleeper.wait()
        process.close()


def test_a_barrier_of_one_rank_is_open():
    with shared(1) as (control, bells), impatient(control, bells) as (barrier,):
        for command in (1, 2):
            barrier.begin(command)
            for _ in range(3):
                barrier.wait()


def test_every_word_has_its_own_place():
    with shared(3) as (control, _):
        values = itertools.count(1)
        written = {}
        for rank in range(3):
            for field in (ARRIVED, FAILED, SLEEPING, PHASE):
                written[rank, field] = next(values)
                control.set(rank, field, written[rank, field])
            for word in range(HEADER_WORDS):
                written[rank, "header", word] = next(values)
                control.header(rank)[word] = written[rank, "header", word]
        for (rank, field, *word), value in written.items():
            assert (control.header(rank)[word[0]] if word else control.get(rank, field)) == value
        assert len(control.header(0)) == HEADER_WORDS


def test_words_hold_the_tickets_of_many_commands():
    with shared(1) as (control, bells):
        barrier = make_barrier(control, bells, 0)
        barrier.begin(10**9)
        barrier.wait()
        assert control.get(0, ARRIVED) == 10**9 * sync.STEPS_PER_COMMAND + 1


def test_phases_have_names():
    with shared(2) as (control, _):
        assert control.phase(1) == "idle"
        names = []
        for phase in (IDLE, COMPILING, COMPUTING, COLLECTIVE):
            control.set(1, PHASE, phase)
            names.append(control.phase(1))
        assert names == ["idle", "compiling", "computing", "in a collective"]
        assert control.phase(0) == "idle"


def test_a_bell_is_heard_by_its_rank_until_it_is_quiet():
    def heard():
        return select.select([bells.fileno(0), bells.fileno(1)], [], [], 0)[0]

    bells = Doorbells(2)
    assert heard() == []
    bells.quiet(1)
    bells.ring(1)
    bells.ring(1)
    assert heard() == [bells.fileno(1)]
    bells.quiet(1)
    assert heard() == []
    bells.close()


def test_a_rank_that_abandoned_all_commands_stays_out():
    with shared(2) as (control, bells):
        gone, other = (make_barrier(control, bells, rank) for rank in range(2))
        gone.begin(1)
        gone.abandon()
        gone.fail()
        other.begin(2)
        with pytest.raises(Aborted):
            other.wait()


def test_a_look_around_finds_failures_and_asks_for_patience():
    with shared(2) as (control, bells):
        asked = []
        mine = make_barrier(control, bells, 0, on_late=asked.append)
        other = make_barrier(control, bells, 1)
        for command, give_up in enumerate([other.fail, other.abandon], start=1):
            mine.begin(command)
            other.begin(command)
            mine.look()  # returns at once, whoever is missing
            give_up()
            with pytest.raises(Aborted):
                mine.look()
        assert asked == [[1], [1]]


def test_a_look_around_finds_a_death():
    with shared(2) as (control, bells):
        reading, writing = os.pipe()

        def told(descriptor):
            raise EOFError(descriptor)

        mine = make_barrier(control, bells, 0, lives=[reading], on_death=told)
        mine.begin(1)
        bells.ring(0)
        mine.look()
        os.close(writing)
        with pytest.raises(EOFError):
            mine.look()
        os.close(reading)
