"""The suite that all implementations of `Leaders` pass.

A test module has a class that inherits ``LeadersSuite`` and brings a fixture ``group``: ``n_machines``, and
``outcomes(work, *arguments)``, which lets all machines begin another command and run ``work(leaders, watch,
*arguments)``, and returns what each returned or raised. Functions travel by name: they are of this module.
"""

import time

import numpy as np
import pytest

from support.communicators.suite import identical, reduced, values
from synk.transport.commands.interfaces import Aborted

DTYPES = ["float16", "float32", "float64", "complex64", "complex128", "int8", "uint16", "int64", "bool"]
REDUCTIONS = [
    (op, dtype)
    for dtype in DTYPES
    for op in ("sum", "prod", "min", "max")
    if not (dtype == "bool" and op == "sum") and not (dtype.startswith("complex") and op in ("min", "max"))
]
SIZES = [0, 1, 2, 3, 5, 1001, 70_001]
LARGE = 3_000_017  # elements: several chunks
LATE = 0.15  # seconds: longer than short naps


class GaveUp(Exception):
    """Raised by ``watch`` in tests."""


# --- work of one machine -----------------------------------------------------------------------------


def payload_of(machine, nbytes, n):
    """Return a machine's payload: bytes from which the machine can be recognised."""
    return bytes([(machine + n) % 251]) * nbytes


def agree(leaders, watch):
    """Meet, as all do before they combine arrays."""
    leaders.all_gather(b"", watch)


def know_place(leaders, watch):
    return leaders.machine, leaders.n_machines


def gather(leaders, watch, sizes):
    return [leaders.all_gather(payload_of(leaders.machine, size, n), watch) for n, size in enumerate(sizes)]


def gather_ragged(leaders, watch, sizes):
    machine = leaders.machine
    return [
        leaders.all_gather(payload_of(machine, sizes[(n + machine) % len(sizes)], n), watch)
        for n in range(len(sizes))
    ]


def gather_buffers(leaders, watch):
    """Bring what is not bytes."""
    mine = np.arange(4.0) + leaders.machine
    return leaders.all_gather(mine, watch), leaders.all_gather(memoryview(mine), watch)


def reduce(leaders, watch, op, dtype, sizes):
    agree(leaders, watch)
    results = []
    for size in sizes:
        array = values(dtype, (size,), leaders.machine)
        assert leaders.all_reduce(array, op, watch) is None
        results.append(array)
    return results


def reduce_special(leaders, watch, op, dtype):
    agree(leaders, watch)
    array = np.ones(70, dtype)
    array[2 * leaders.machine] = np.nan
    array[-1] = np.inf
    leaders.all_reduce(array, op, watch)
    return array


def reduce_part(leaders, watch):
    """Combine the middle of an array, of which the rest is nobody else's business."""
    agree(leaders, watch)
    whole = np.full(1000, leaders.machine + 1.0)
    leaders.all_reduce(whole[100:900], "sum", watch)
    return whole


def mix(leaders, watch, rounds):
    """Do all sorts of things one after the other, now and then late."""
    agree(leaders, watch)
    results = []
    for n in range(rounds):
        if (n + leaders.machine) % leaders.n_machines == 0:
            time.sleep(0.001)
        array = np.arange(7) * (leaders.machine + n)
        leaders.all_reduce(array, "sum", watch)
        results.append((array.tolist(), leaders.all_gather(b"%d" % (n + leaders.machine), watch)))
    return results


def come_late(leaders, watch, who):
    if leaders.machine == who:
        time.sleep(LATE)
    began = time.monotonic()
    leaders.all_gather(b"", watch)
    return time.monotonic() - began


def fail_before(leaders, watch, who, meetings, times=1):
    """Come to some meetings; one machine fails instead of coming to the next."""
    came = [leaders.all_gather(b"%d" % n, watch) for n in range(meetings)]
    if leaders.machine == who:
        for _ in range(times):
            leaders.fail()
        raise GaveUp
    try:
        leaders.all_gather(b"too many", watch)
    except Aborted:
        leaders.fail()  # as ranks do
        return came
    return "has met"


def fail_after(leaders, watch, who):
    """Meet; one machine fails at once, others take their time."""
    payload = b"x" * 5000
    if leaders.machine != who:
        time.sleep(LATE * (leaders.machine % 2))
    came = leaders.all_gather(payload, watch)
    if leaders.machine == who:
        leaders.fail()
    return came == [payload] * leaders.n_machines


def fail_in_reduction(leaders, watch, who):
    """One machine fails where the others combine."""
    agree(leaders, watch)
    if leaders.machine == who:
        leaders.fail()
        raise GaveUp
    leaders.all_reduce(np.ones(LARGE), "sum", watch)


def give_up(leaders, watch, who, nbytes):
    """One machine is not waiting any longer for another, which comes, but late."""
    began = time.monotonic()

    def impatient():
        if time.monotonic() - began > LATE / 3:
            raise GaveUp

    if leaders.machine == who:
        try:
            leaders.all_gather(bytes(nbytes), impatient)
        except GaveUp:
            leaders.fail()
            return "gave up"
    time.sleep(LATE)
    try:
        leaders.all_gather(bytes(nbytes), watch)  # its payload may be here already, but not at the next
        leaders.all_gather(b"", watch)
    except Aborted:
        leaders.fail()
        return "aborted"
    return "met"


def count_watches(leaders, watch, who):
    """Return how often ``watch`` was called while one machine was late."""
    calls = []
    if leaders.machine == who:
        time.sleep(LATE)
    leaders.all_gather(b"", lambda: calls.append(1))
    return len(calls)


# --- tests --------------------------------------------------------------------------------------------


class LeadersSuite:
    """Tests of all leaders, of any number of machines."""

    @staticmethod
    def results(group, work, *arguments):
        """Return ``work`` of all machines, none of which raises."""
        outcomes = group.outcomes(work, *arguments)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def usable(self, group):
        """Hold leaders to meeting as if nothing had been."""
        expected = [payload_of(machine, 100, 0) for machine in range(group.n_machines)]
        assert self.results(group, gather, [100]) == [[expected]] * group.n_machines

    def test_machines_know_their_place(self, group):
        n = group.n_machines
        assert self.results(group, know_place) == [(machine, n) for machine in range(n)]

    def test_payloads_come_in_the_order_of_machines(self, group):
        sizes = [0, 1, 10, 4096, 5000, 100_000, 1_000_000, 3]
        for result in self.results(group, gather, sizes):
            assert result == [
                [payload_of(machine, size, n) for machine in range(group.n_machines)]
                for n, size in enumerate(sizes)
            ]

    def test_lengths_of_payloads_may_differ(self, group):
        sizes = [0, 70_000, 3, 4096, 500_000]
        for result in self.results(group, gather_ragged, sizes):
            assert result == [
                [payload_of(m, sizes[(n + m) % len(sizes)], n) for m in range(group.n_machines)]
                for n in range(len(sizes))
            ]

    def test_payloads_are_anything_with_bytes(self, group):
        expected = [(np.arange(4.0) + machine).tobytes() for machine in range(group.n_machines)]
        for arrays, views in self.results(group, gather_buffers):
            assert arrays == views == expected

    @pytest.mark.parametrize(("op", "dtype"), REDUCTIONS)
    def test_arrays_are_combined_in_the_order_of_machines(self, group, op, dtype):
        one, *others = self.results(group, reduce, op, dtype, SIZES)
        for other in others:
            for mine, theirs in zip(one, other, strict=True):
                identical(mine, theirs)
        for size, result in zip(SIZES, one, strict=True):
            expected = reduced([values(dtype, (size,), machine) for machine in range(group.n_machines)], op)
            if (op, dtype[:7]) == ("prod", "complex"):  # depends on where in the array a number stands
                np.testing.assert_allclose(result, expected, rtol=1e-5, strict=True)
            else:
                identical(result, expected)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
    def test_what_is_not_finite_arrives_everywhere(self, group, op, dtype):
        one, *others = self.results(group, reduce_special, op, dtype)
        assert np.flatnonzero(np.isnan(one)).tolist() == [2 * machine for machine in range(group.n_machines)]
        assert one[-1] == np.inf
        for other in others:
            identical(other, one)

    def test_large_arrays_go_in_chunks(self, group):
        expected = reduced(
            [values("float32", (LARGE,), machine) for machine in range(group.n_machines)], "sum"
        )
        for (result,) in self.results(group, reduce, "sum", "float32", [LARGE]):
            identical(result, expected)

    def test_the_same_run_gives_the_same_bits(self, group):
        runs = [self.results(group, reduce, "sum", "float32", [70_001]) for _ in range(3)]
        for run in runs:
            for (result,) in run:
                identical(result, runs[0][0][0])

    def test_nothing_but_the_array_is_written(self, group):
        total = float(sum(range(1, group.n_machines + 1)))
        for machine, whole in enumerate(self.results(group, reduce_part)):
            assert set(whole[100:900]) == {total}
            assert {*whole[:100], *whole[900:]} == {machine + 1.0}

    def test_meetings_of_all_kinds_follow_each_other(self, group):
        machines, rounds = range(group.n_machines), 30
        expected = [
            ((np.arange(7) * sum(m + n for m in machines)).tolist(), [b"%d" % (n + m) for m in machines])
            for n in range(rounds)
        ]
        for result in self.results(group, mix, rounds):
            assert result == expected

    def test_all_wait_for_the_last(self, group):
        for who in {0, group.n_machines - 1}:
            waited = self.results(group, come_late, who)
            assert all(seconds > LATE / 2 for machine, seconds in enumerate(waited) if machine != who)

    def test_who_waits_looks_up_now_and_then(self, group):
        for who in {0, group.n_machines - 1}:
            watches = self.results(group, count_watches, who)
            assert all(count >= 2 for machine, count in enumerate(watches) if machine != who)

    @pytest.mark.parametrize("times", [1, 2])
    @pytest.mark.parametrize("meetings", [0, 1, 3])
    def test_a_failure_ends_the_wait_of_all_others(self, group, meetings, times):
        n = group.n_machines
        for who in range(n):
            outcomes = group.outcomes(fail_before, who, meetings, times)
            assert isinstance(outcomes.pop(who), GaveUp)
            assert outcomes == [[[b"%d" % k] * n for k in range(meetings)]] * (n - 1)
        self.usable(group)

    def test_who_has_met_before_a_failure_does_not_notice(self, group):
        for who in range(group.n_machines):
            assert self.results(group, fail_after, who) == [True] * group.n_machines
        self.usable(group)

    def test_a_failure_ends_reductions_too(self, group):
        outcomes = group.outcomes(fail_in_reduction, 0)
        assert [type(one) for one in outcomes] == [GaveUp] + [Aborted] * (group.n_machines - 1)
        self.usable(group)
        self.results(group, reduce, "sum", "float32", [LARGE])

    @pytest.mark.parametrize("nbytes", [10, 1_000_000])
    def test_who_gives_up_is_missed_by_the_others(self, group, nbytes):
        n = group.n_machines
        for who in {0, n - 1} if n > 1 else ():
            outcomes = self.results(group, give_up, who, nbytes)
            assert outcomes == ["gave up" if machine == who else "aborted" for machine in range(n)]
        self.usable(group)

    def test_commands_follow_each_other_fast(self, group):
        for n in range(20):
            size = 10 + n % 3
            expected = [payload_of(machine, size, 0) for machine in range(group.n_machines)]
            assert self.results(group, gather, [size]) == [[expected]] * group.n_machines
