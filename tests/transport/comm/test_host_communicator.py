"""The communicator of ranks on one machine: the suite of all, and what it does beside that."""

import functools
import time

import numpy as np
import pytest

from support.communicators.suite import (
    BLOCK,
    FLOATS,
    REDUCTIONS,
    SHAPES,
    UFUNCS,
    CommunicatorSuite,
    DisagreementSuite,
    HostGroup,
    identical,
    reduced,
    seen,
    values,
)
from support.slow import slow
from synk.values.errors import CollectiveMismatch, SharedMemoryFull


def counted(call, calls):
    """Return a wrapper that notes each call before it is made."""

    def noted():
        calls.append(call)
        return call()

    return noted


class TestHost(CommunicatorSuite):
    @pytest.fixture(params=[slow(1), slow(2), 3, slow(4)], ids="{}-ranks".format)
    def group(self, request):
        group = HostGroup(request.param)
        yield group
        group.close()

    def test_the_arena_grows_with_what_it_must_hold(self, group):
        def work(comm, length):
            return comm.all_reduce(np.full(length, comm.rank + 1, "u1"), "max")

        counts = []
        for length in (100, 50, 100, 1000, 1, 999, 5000):
            for result in group.run(functools.partial(work, length=length)):
                assert result.tolist() == [group.n_ranks] * length
            counts.append(len(group.arenas))
        assert counts == [1, 1, 1, 2, 2, 2, 3]
        assert group.arenas[-1].nbytes >= 5000 * group.n_ranks

    def test_the_arena_grows_in_the_middle_of_a_command(self, group):
        def work(comm):
            return [comm.all_reduce(np.full(4**n, comm.rank + n), "sum") for n in range(8)]

        for results in group.run(work):
            for n, result in enumerate(results):
                assert result.tolist() == [sum(rank + n for rank in range(group.n_ranks))] * 4**n

    def test_without_room_for_a_larger_arena_the_old_one_serves(self, group, monkeypatch):
        def work(comm, length):
            return comm.all_reduce(np.ones(length), "sum")

        group.run(functools.partial(work, length=10))

        def refuse(nbytes):
            raise SharedMemoryFull(f"needed {nbytes}")

        with monkeypatch.context() as patch:
            for comm in group.communicators:
                patch.setattr(comm, "_grow", refuse)
            outcomes = group.outcomes(functools.partial(work, length=10_000))
            assert [type(outcome) for outcome in outcomes] == [SharedMemoryFull] * group.n_ranks
            for result in group.run(functools.partial(work, length=10)):
                assert result.tolist() == [group.n_ranks] * 10

    @pytest.mark.parametrize(("op", "dtype"), REDUCTIONS)
    def test_all_reduce_of_arrays_that_all_ranks_see(self, group, op, dtype):
        for shape in [*SHAPES, (3 * BLOCK + 17,)]:
            shared = [values(dtype, shape, rank) for rank in range(group.n_ranks)]
            expected = reduced([values(dtype, shape, rank) for rank in range(group.n_ranks)], op)
            results = group.run(
                lambda comm, shared=shared: comm.all_reduce(shared[comm.rank], op, seen(shared, comm.rank))
            )
            for result, array in zip(results, shared, strict=True):
                assert result is array
                identical(array, shared[0])
                np.testing.assert_allclose(array, expected, rtol=1e-5 if dtype == "complex64" else 0)
        assert group.arenas == [], "nothing is staged"

    def test_broadcast_of_arrays_that_all_ranks_see(self, group):
        for root in range(group.n_ranks):
            shared = [values("float32", (3, 4), rank) for rank in range(group.n_ranks)]
            results = group.run(
                lambda comm, shared=shared, root=root: comm.broadcast(
                    shared[comm.rank], root, seen(shared, comm.rank)
                )
            )
            for result, array in zip(results, shared, strict=True):
                assert result is array
                identical(array, values("float32", (3, 4), root))
        assert group.arenas == []

    @pytest.mark.parametrize("lost", [None, 0, -1], ids=["all", "not rank 0", "not the last rank"])
    def test_ranks_meet_once_for_many_arrays_that_all_see(self, group, lost):
        of_all = [
            [values("float64", (3,), 10 * n + rank) for rank in range(group.n_ranks)] for n in range(20)
        ]
        expected = [reduced(shared, "sum") for shared in of_all]
        waits = []
        for barrier in group.barriers:
            barrier.wait = counted(barrier.wait, waits)
        ranks = range(group.n_ranks)
        shared = [[seen(one, rank) for one in of_all] for rank in ranks]
        if lost is not None:
            shared[lost][7] = None  # one array of one rank is elsewhere

        def work(comm):
            mine = shared[comm.rank]
            with comm.at_once("all_reduce", "sum", mine):
                return [
                    comm.all_reduce(one[comm.rank], "sum", known)
                    for one, known in zip(of_all, mine, strict=True)
                ]

        for _ in range(2):
            waits.clear()
            for results in group.run(work):
                np.testing.assert_allclose(results, expected)
            expected = [group.n_ranks * total for total in expected]
            assert len(waits) == 2 * group.n_ranks if lost is None else len(waits) > 20 * group.n_ranks

    @pytest.mark.parametrize("op", UFUNCS)
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_reduce_of_arrays_that_all_ranks_see(self, group, op, dtype):
        for in_place in (False, True):
            for root in range(group.n_ranks):
                shared = [values(dtype, (2, BLOCK + 5), rank) for rank in range(group.n_ranks)]
                before = [array.copy() for array in shared]

                def work(comm, shared=shared, root=root, in_place=in_place):
                    return comm.reduce(shared[comm.rank], op, root, seen(shared, comm.rank), in_place)

                for rank, result in enumerate(group.run(work)):
                    if rank == root:
                        identical(result, reduced(before, op))
                        assert (result is shared[rank]) == in_place
                    else:
                        assert result is None
                    if rank != root or not in_place:
                        identical(shared[rank], before[rank])
        assert group.arenas == []

    def test_gathering_of_arrays_that_all_ranks_see(self, group):
        shared = [values("float32", (2 + rank, 4), rank) for rank in range(group.n_ranks)]

        def work(comm):
            mine, all_ = shared[comm.rank], seen(shared, comm.rank)
            results = [
                comm.all_gather(mine, all_),
                comm.gather(mine, 0, all_),
                *[comm.gather(mine, 0, all_, only=rank) for rank in range(comm.n_ranks)],
            ]
            mine += 1  # nobody reads it any more
            return results

        before = [array.copy() for array in shared]
        for rank, (all_, gathered, *ones) in enumerate(group.run(work)):
            for array, expected in zip(all_, before, strict=True):
                identical(array, expected)
            if rank == 0:
                for array, (one,), expected in zip(gathered, ones, before, strict=True):
                    identical(array, expected)
                    identical(one, expected)
        assert group.arenas == []

    def test_a_late_reader_sees_the_value_of_its_turn(self, group):
        shared = [np.zeros(4) for _ in range(group.n_ranks)]

        def work(comm):
            mine, all_, results = shared[comm.rank], seen(shared, comm.rank), []

            def read(arrays):
                time.sleep(0.001)  # the others would be gone by then
                return [array[0] for array in arrays]

            for _ in range(5):
                mine += 1
                results.append(comm.gather(mine, 0, all_, read))
                mine += 1
                results.append(comm.gather(mine, 0, all_, read, only=comm.n_ranks - 1))
            return results

        for number, values_ in enumerate(group.run(work)[0], start=1):
            assert set(values_) == {number}

    def test_arrays_are_staged_unless_every_rank_sees_all(self, group):
        shared = [values("float32", (50,), rank) for rank in range(group.n_ranks)]
        expected = reduced([values("float32", (50,), rank) for rank in range(group.n_ranks)], "sum")

        def work(comm):
            return comm.all_reduce(
                shared[comm.rank], "sum", None if comm.rank == 0 else seen(shared, comm.rank)
            )

        for result in group.run(work):
            identical(result, expected)
        assert len(group.arenas) == 1

    def test_ranks_that_see_all_arrays_may_still_disagree(self, group):
        shared = [np.ones(3 + rank) for rank in range(group.n_ranks)]
        outcomes = group.outcomes(
            lambda comm: comm.all_reduce(shared[comm.rank], "sum", seen(shared, comm.rank))
        )
        agree = group.n_ranks == 1
        assert [isinstance(outcome, CollectiveMismatch) for outcome in outcomes] == [
            not agree
        ] * group.n_ranks

    def test_rank_0_works_on_what_all_bring(self, group):
        def work(comm):
            results = []
            for number in range(20):
                mine = bytes([comm.rank]) * (number * comm.rank)
                results.append(comm.at_first(mine, 100, b"|".join, 400))
                if number % 5 == 0:
                    results.append(comm.all_reduce(np.full(number, 1), "sum").tolist())
            return results

        expected = []
        for number in range(20):
            expected.append(b"|".join(bytes([rank]) * (number * rank) for rank in range(group.n_ranks)))
            if number % 5 == 0:
                expected.append([group.n_ranks] * number)
        assert group.run(work) == [expected] * group.n_ranks

    def test_results_outlive_the_arena(self):
        group = HostGroup(2)
        results = group.run(lambda comm: (comm.all_reduce(np.ones(5), "sum"), comm.all_gather(np.ones(2))))
        group.communicators.clear()
        group.close()
        for total, parts in results:
            assert total.base is None
            assert total.tolist() == [2.0] * 5
            assert [part.tolist() for part in parts] == [[1.0, 1.0]] * 2


class TestHostDisagreement(DisagreementSuite):
    @pytest.fixture(params=[slow(2), 3, slow(4)], ids="{}-ranks".format)
    def group(self, request):
        group = HostGroup(request.param)
        yield group
        group.close()

    def check_nothing_moved(self, group):
        # No arena was made for what ranks did not agree on.
        assert len(group.arenas) == 1
