"""The suite that every communicator passes, and ranks to run it on: threads instead of processes.

A test module has a class for each communicator, which inherits ``CommunicatorSuite`` and brings a fixture
``group`` with ``n_ranks`` and ``run``; where ranks can disagree, one of ``DisagreementSuite`` too, with
``outcomes``.
"""

import functools
import re
import threading
import time
from itertools import product

import numpy as np
import pytest

from support.slow import slow
from support.transport.parts import make_barrier, on_threads
from synk.transport.comm import HostCommunicator, SharedArrays
from synk.transport.comm.blocks import block_length
from synk.transport.commands.sync import Aborted, ControlBlock, Doorbells
from synk.transport.memory.shm import Segment
from synk.values.errors import CollectiveMismatch

BLOCK = block_length(2, 4)  # of float32 on two ranks

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "uint64"]
# `make test` leaves other widths of a kind to `make test-all`.
USUAL = ["float16", "float64", "uint8", "int64", "complex64", "bool"]
DTYPES = [dtype if dtype in USUAL else slow(dtype) for dtype in (*FLOATS, *INTEGERS, "complex64", "bool")]
UFUNCS = {"avg": np.add, "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
REDUCTIONS = [
    (op, dtype) if dtype in USUAL else slow(op, dtype)
    for op, dtype in [
        *product(UFUNCS, FLOATS),
        *product(("sum", "prod", "min", "max"), INTEGERS),
        *product(("avg", "sum", "prod"), ["complex64"]),
        *product(("prod", "min", "max"), ["bool"]),
    ]
]
FLOATS = [dtype if dtype in USUAL else slow(dtype) for dtype in FLOATS]
SHAPES = [(), (0,), (1,), (2,), (3,), (5,), (13,), (3, 5), (2, 3, 4), (0, 4), (1, 1, 1, 7)]


class RankGroup:
    """Ranks of a run on threads of this process instead of processes; heirs make ``communicators``."""

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.control, self.bells = ControlBlock(n_ranks), Doorbells(n_ranks)
        self.barriers = [make_barrier(self.control, self.bells, rank) for rank in range(n_ranks)]
        self.communicators = []
        self._command = 0

    def outcomes(self, work):
        """Run one command; return what each rank returned or raised, in rank order."""
        self._command += 1

        def run(rank):
            self.barriers[rank].begin(self._command)
            try:
                return work(self.communicators[rank])
            except BaseException:
                self.barriers[rank].fail()  # as a worker does
                raise

        return on_threads(self.n_ranks, run)

    def run(self, work):
        """Return ``work(communicator)`` of each rank, in rank order."""
        outcomes = self.outcomes(work)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, Aborted)):
            raise error
        return outcomes

    def close(self):
        self.bells.close()
        self.control.close()


class HostGroup(RankGroup):
    """Ranks of the host communicator, on threads, with shared memory made by the test."""

    def __init__(self, n_ranks):
        super().__init__(n_ranks)
        self.communicators = [
            HostCommunicator(self.barriers[rank], functools.partial(self._grow, rank))
            for rank in range(n_ranks)
        ]
        self.arenas = []
        self._grown = [0] * n_ranks  # by rank, how often it asked for a new arena
        self._lock = threading.Lock()

    def _grow(self, rank, nbytes):
        with self._lock:
            number = self._grown[rank]
            self._grown[rank] += 1
            if number == len(self.arenas):
                self.arenas.append(Segment.create(nbytes))
            assert self.arenas[number].nbytes == nbytes, "ranks want arenas of different size"
            return self.arenas[number]

    def close(self):
        for arena in self.arenas:
            arena.close()
        super().close()


def values(dtype, shape, seed):
    """Return the array of the rank with this ``seed``."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind == "f":
        return np.asarray(rng.normal(size=shape), dtype)
    if dtype == "complex64":
        return np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape), dtype)
    return np.asarray(rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(1, 100, shape), dtype)


def reduced(arrays, op):
    """Reduce in rank order, float16 in float32, as one process would."""
    accumulating = np.float32 if arrays[0].dtype == np.float16 else arrays[0].dtype
    total = functools.reduce(UFUNCS[op], [array.astype(accumulating) for array in arrays])
    return np.asarray(total / len(arrays) if op == "avg" else total, arrays[0].dtype)


def seen(shared, rank):
    """Return the places of all ranks' arrays, as one rank knows them."""
    return None if shared is None else SharedArrays(shared, rank)


def identical(one, other):
    """Hold one array to being the other, bit for bit."""
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes(), f"{one} is not {other}"


class CommunicatorSuite:
    """Tests of every communicator, with any number of ranks."""

    def test_ranks_know_their_place(self, group):
        places = group.run(lambda comm: (comm.rank, comm.n_ranks))
        assert places == [(rank, group.n_ranks) for rank in range(group.n_ranks)]

    @pytest.mark.parametrize(("op", "dtype"), REDUCTIONS)
    def test_all_reduce(self, group, op, dtype):
        def work(comm):
            return [comm.all_reduce(values(dtype, shape, comm.rank), op) for shape in SHAPES]

        results = group.run(work)
        for number, shape in enumerate(SHAPES):
            expected = reduced([values(dtype, shape, rank) for rank in range(group.n_ranks)], op)
            for result in results:
                identical(result[number], results[0][number])
                if dtype == "complex64" and op in ("prod", "avg"):
                    # NumPy's product of complex numbers depends on where in the array they stand, and its
                    # quotient is not that of the parts.
                    np.testing.assert_allclose(result[number], expected, rtol=1e-5, strict=True)
                else:
                    identical(result[number], expected)

    @pytest.mark.parametrize("op", UFUNCS)
    def test_reduce_is_for_the_root_alone(self, group, op):
        def work(comm):
            return [comm.reduce(values("float32", (7,), comm.rank), op, root) for root in range(comm.n_ranks)]

        expected = reduced([values("float32", (7,), rank) for rank in range(group.n_ranks)], op)
        for rank, results in enumerate(group.run(work)):
            for root, result in enumerate(results):
                if root == rank:
                    identical(result, expected)
                else:
                    assert result is None

    def test_the_root_is_rank_0_unless_named(self, group):
        def work(comm):
            mine = np.full(3, comm.rank + 1.0)
            return comm.reduce(mine, "max"), comm.broadcast(mine)

        for rank, (most, first) in enumerate(group.run(work)):
            assert most is None if rank else most.tolist() == [group.n_ranks] * 3
            assert first.tolist() == [1.0] * 3

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_broadcast(self, group, dtype):
        def work(comm):
            return [
                comm.broadcast(values(dtype, shape, comm.rank), root)
                for shape in SHAPES
                for root in range(comm.n_ranks)
            ]

        expected = [values(dtype, shape, root) for shape in SHAPES for root in range(group.n_ranks)]
        for results in group.run(work):
            for result, array in zip(results, expected, strict=True):
                identical(result, array)

    def test_broadcast_brings_its_shape(self, group):
        shapes = [(2, 3), (), (0, 5), (50,)]

        def work(comm):
            mine = values("float32", shapes[comm.rank % 4], comm.rank)
            return [comm.broadcast(mine, root) for root in range(comm.n_ranks)]

        for results in group.run(work):
            for root, result in enumerate(results):
                identical(result, values("float32", shapes[root % 4], root))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_all_gather(self, group, dtype):
        def work(comm):
            return [comm.all_gather(values(dtype, shape, comm.rank)) for shape in SHAPES]

        for results in group.run(work):
            for shape, result in zip(SHAPES, results, strict=True):
                assert len(result) == group.n_ranks
                for rank, array in enumerate(result):
                    identical(array, values(dtype, shape, rank))

    @pytest.mark.parametrize("first", range(4))
    def test_all_gather_of_ragged_arrays(self, group, first):
        shapes = [(5, 2), (0, 2), (1,), ()]

        def bring(rank):
            return values("float64", shapes[(first + rank) % 4], rank)

        for result in group.run(lambda comm: comm.all_gather(bring(comm.rank))):
            assert len(result) == group.n_ranks
            for rank, array in enumerate(result):
                identical(array, bring(rank))

    def test_gather_is_for_the_root_alone(self, group):
        shapes = [(5, 2), (0, 2), (1,), ()]

        def bring(rank):
            return values("float64", shapes[rank % 4], rank)

        def work(comm):
            return [comm.gather(bring(comm.rank), root) for root in range(comm.n_ranks)]

        for rank, results in enumerate(group.run(work)):
            for root, result in enumerate(results):
                if root != rank:
                    assert result is None
                    continue
                for other, array in enumerate(result):
                    identical(array, bring(other))

    def test_gather_of_one_rank_only(self, group):
        def work(comm):
            mine = np.full(comm.rank + 1, comm.rank)
            return [comm.gather(mine, only=rank) for rank in range(comm.n_ranks)]

        first, *others = group.run(work)
        assert [[array.tolist() for array in result] for result in first] == [
            [[rank] * (rank + 1)] for rank in range(group.n_ranks)
        ]
        assert others == [[None] * group.n_ranks] * (group.n_ranks - 1)

    def test_what_is_gathered_is_read_once(self, group):
        def work(comm):
            mine = np.full((2, 3), float(comm.rank))
            return comm.all_gather(mine, read=np.concatenate), comm.gather(mine, read=np.stack)

        expected = np.repeat(np.arange(float(group.n_ranks)), 6)
        for rank, (joined, stacked) in enumerate(group.run(work)):
            identical(joined, expected.reshape(-1, 3))
            if rank == 0:
                identical(stacked, expected.reshape(-1, 2, 3))

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
    def test_averages_do_not_overflow(self, group, dtype):
        largest = np.finfo(dtype).max
        usual = 1001  # many blocks' worth are not needed: one block is done anew as a whole
        special = [largest, -largest, largest / 2, np.inf, -np.inf, np.nan]

        def bring(rank):
            array = values(dtype, (usual + 7,), rank)
            array[:6] = special
            array[6] = largest if rank % 2 == 0 else -largest
            return array

        results = group.run(lambda comm: comm.all_reduce(bring(comm.rank), "avg"))
        n_odd = group.n_ranks // 2
        mixed = largest * ((group.n_ranks - 2 * n_odd) / group.n_ranks)
        expected = np.array([*special, mixed], dtype)
        np.testing.assert_allclose(results[0][:7].real, expected.real, rtol=4 * np.finfo(dtype).eps)
        plain = reduced([bring(rank)[7:] for rank in range(group.n_ranks)], "avg")
        if dtype == "complex64":
            np.testing.assert_allclose(results[0][7:], plain, rtol=1e-6)
        else:
            identical(results[0][7:], plain)
        for result in results:
            identical(result, results[0])

    def test_arrays_need_not_be_contiguous(self, group):
        def bring(rank):
            def base():  # of each array its own: the collectives may write to them
                return values("float64", (6, 8), rank)

            return [
                base().T,
                base()[::2, ::-3],
                np.asfortranarray(base()),
                base()[:, 1],
                np.broadcast_to(base()[0], (3, 8)),  # read-only, strides of zero
                base().astype(">f8")[1:],
            ]

        def work(comm):
            reductions = [comm.all_reduce(array, "sum") for array in bring(comm.rank)]
            broadcasts = [comm.broadcast(array, comm.n_ranks - 1) for array in bring(comm.rank)]
            return reductions, broadcasts, [comm.all_gather(array) for array in bring(comm.rank)]

        brought = [bring(rank) for rank in range(group.n_ranks)]
        for reductions, broadcasts, gathers in group.run(work):
            for number, arrays in enumerate(zip(*brought, strict=True)):
                np.testing.assert_array_equal(reductions[number], functools.reduce(np.add, arrays))
                np.testing.assert_array_equal(broadcasts[number], arrays[-1])
                for gathered, array in zip(gathers[number], arrays, strict=True):
                    np.testing.assert_array_equal(gathered, array)

    def test_any_length_is_shared_among_any_ranks(self, group):
        lengths = [*range(1, 18), 3 * BLOCK + 17, 5 * BLOCK - 1]

        def work(comm):
            return [comm.all_reduce(values("float32", (length,), comm.rank), "sum") for length in lengths]

        results = group.run(work)
        for number, length in enumerate(lengths):
            expected = reduced([values("float32", (length,), rank) for rank in range(group.n_ranks)], "sum")
            for result in results:
                identical(result[number], expected)

    def test_float16_is_rounded_once(self, group):
        def work(comm):
            return comm.all_reduce(np.array([2048.0 if comm.rank == 0 else 1.0], "float16"), "sum")

        for result in group.run(work):
            assert result.tolist() == [np.float16(2048.0 + group.n_ranks - 1)]

    @pytest.mark.parametrize("op", UFUNCS)
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_what_is_not_finite_arrives_everywhere(self, group, op, dtype):
        def work(comm):
            array = np.ones(9, dtype)
            array[2 * comm.rank] = np.nan
            array[8] = np.inf
            return comm.all_reduce(array, op)

        one, *others = group.run(work)
        assert np.flatnonzero(np.isnan(one)).tolist() == [2 * rank for rank in range(group.n_ranks)]
        assert one[8] == np.inf
        for other in others:
            identical(other, one)

    def test_the_same_run_gives_the_same_bits(self, group):
        def work(comm):
            return comm.all_reduce(values("float32", (1001,), comm.rank), "avg")

        runs = [group.run(work) for _ in range(5)]
        for results in runs:
            for result in results:
                identical(result, runs[0][0])

    def test_results_stay_as_they_are(self, group):
        def work(comm):
            kept = []
            for number in range(6):
                mine = np.full(20, 10.0 * number + comm.rank)
                kept.append(
                    (
                        comm.all_reduce(mine.copy(), "max"),
                        comm.broadcast(mine.copy()),
                        comm.all_gather(mine.copy()),
                    )
                )
            return kept

        for kept in group.run(work):
            for number, (most, first, all_) in enumerate(kept):
                assert set(most) == {10.0 * number + group.n_ranks - 1}
                assert set(first) == {10.0 * number}
                assert [set(array) for array in all_] == [{10.0 * number + r} for r in range(group.n_ranks)]

    def test_results_are_the_ranks_own(self, group):
        def work(comm):
            result = comm.all_reduce(np.full(4, 1.0), "sum")
            result += comm.rank
            gathered = comm.all_gather(result)
            return result, gathered

        for rank, (result, gathered) in enumerate(group.run(work)):
            assert set(result) == {float(group.n_ranks + rank)}
            assert [array[0] for array in gathered] == [group.n_ranks + r for r in range(group.n_ranks)]

    def test_many_collectives_of_all_kinds_in_one_command(self, group):
        n_ranks, rounds = group.n_ranks, 40
        plan = np.random.default_rng(3).integers(0, [4, 60, n_ranks], (rounds, 3))

        def bring(number, rank):
            return values("int64", (int(plan[number, 1]),), 1000 * number + rank)

        def work(comm):
            results = []
            for number, (kind, _, root) in enumerate(plan):
                mine = bring(number, comm.rank)
                if (number + comm.rank) % comm.n_ranks == 0:
                    time.sleep(0.0005)  # be late for a change
                if kind == 0:
                    results.append(comm.all_reduce(mine, "sum"))
                elif kind == 1:
                    results.append(comm.reduce(mine, "max", root))
                elif kind == 2:
                    results.append(comm.broadcast(mine, root))
                else:
                    results.append(np.concatenate(comm.all_gather(mine)))
            return results

        for rank, results in enumerate(group.run(work)):
            for number, (kind, _, root) in enumerate(plan):
                arrays = [bring(number, r) for r in range(n_ranks)]
                if kind == 1 and rank != root:
                    assert results[number] is None
                    continue
                expected = [
                    reduced(arrays, "sum"),
                    reduced(arrays, "max"),
                    arrays[root],
                    np.concatenate(arrays),
                ][kind]
                identical(results[number], expected)


def all_reduce(comm, dtype="float32", shape=(3,), op="sum"):
    return comm.all_reduce(np.ones(shape, dtype), op)


def broadcast(comm, dtype="float32", shape=(3,), root=0):
    return comm.broadcast(np.ones(shape, dtype), root)


def reduce(comm, in_place=False):
    return comm.reduce(np.ones(3, "float32"), "sum", in_place=in_place)


def gather(comm, dtype="float32"):
    return comm.gather(np.ones(3, dtype))


def all_gather(comm, dtype="float32", shape=(3,)):
    return comm.all_gather(np.ones(shape, dtype))


DISAGREEMENTS = {
    "operation": (all_reduce, functools.partial(all_reduce, op="max")),
    "dtype": (all_reduce, functools.partial(all_reduce, dtype="float64")),
    "dtype of one size": (all_reduce, functools.partial(all_reduce, dtype="int32")),
    "length": (all_reduce, functools.partial(all_reduce, shape=(4,))),
    "length of nothing": (all_reduce, functools.partial(all_reduce, shape=(0,))),
    "shape of one size": (
        functools.partial(all_reduce, shape=(2, 3)),
        functools.partial(all_reduce, shape=(3, 2)),
    ),
    "dimensions": (all_reduce, functools.partial(all_reduce, shape=(3, 1))),
    "0-d": (functools.partial(all_reduce, shape=(1,)), functools.partial(all_reduce, shape=())),
    "collective": (all_reduce, all_gather),
    "other collective": (broadcast, all_gather),
    "kind of gather": (gather, all_gather),
    "kind of reduce": (all_reduce, reduce),
    "in place or not": (reduce, functools.partial(reduce, in_place=True)),
    "dtype of a gather to one": (gather, functools.partial(gather, dtype="int32")),
    "dtype of a broadcast": (broadcast, functools.partial(broadcast, dtype="int32")),
    "dtype of a gather": (all_gather, functools.partial(all_gather, dtype="float16")),
}


class DisagreementSuite:
    """Ranks that do not agree all learn of it, before any data moves."""

    def check_nothing_moved(self, group):
        """Assert that a disagreement has moved no data; subclasses define what to look at."""

    @pytest.mark.parametrize("what", DISAGREEMENTS)
    def test_every_rank_is_told_and_the_next_command_works(self, group, what):
        usual, other = DISAGREEMENTS[what]
        for odd in range(group.n_ranks):
            outcomes = group.outcomes(lambda comm, odd=odd: (other if comm.rank == odd else usual)(comm))
            assert [type(outcome) for outcome in outcomes] == [CollectiveMismatch] * group.n_ranks
            assert all("ranks disagree on a collective" in str(outcome) for outcome in outcomes)
            for result in group.run(all_reduce):
                assert result.tolist() == [group.n_ranks] * 3
        self.check_nothing_moved(group)

    def test_the_message_says_what_each_rank_brought(self, group):
        def work(comm):
            if comm.rank == 1:
                return all_reduce(comm, "float64", (2, 5), "max")
            return all_reduce(comm)

        for outcome in group.outcomes(work):
            assert isinstance(outcome, ValueError)
            assert re.search(r"rank 0: all_reduce 'sum' of float32\[3\]", str(outcome))
            assert re.search(r"rank 1: all_reduce 'max' of float64\[2, 5\]", str(outcome))
            assert str(outcome).count("rank ") == group.n_ranks

    def test_an_earlier_larger_shape_is_forgotten(self, group):
        def work(comm):
            return [all_reduce(comm, shape=shape) for shape in [(2, 3, 4), (5, 2), (6,), (), (1, 2, 3, 4)]]

        for results in group.run(work):
            assert [result.shape for result in results] == [(2, 3, 4), (5, 2), (6,), (), (1, 2, 3, 4)]

    @pytest.mark.parametrize("before", [0, 1, 5])
    def test_ranks_leave_when_one_raises(self, group, before):
        class Broken(Exception):
            pass

        def work(comm):
            for _ in range(before):
                all_reduce(comm)
            if comm.rank == 1:
                raise Broken
            return all_reduce(comm)

        for _ in range(3):
            outcomes = [type(outcome) for outcome in group.outcomes(work)]
            assert outcomes.pop(1) is Broken
            assert outcomes == [Aborted] * (group.n_ranks - 1)
            for result in group.run(all_reduce):
                assert result.tolist() == [group.n_ranks] * 3
