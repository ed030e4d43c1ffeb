"""The communicator of GPUs, on a fake NCCL and strict stand-ins for device arrays; faults at every point."""

import os
import signal
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from support.communicators.fake_nccl import FakeLibrary, NcclError, World
from support.communicators.on_device import OnDevice
from support.communicators.suite import CommunicatorSuite, DisagreementSuite, HostGroup, all_reduce
from support.cupy import stand_in
from support.transport.parts import make_barrier
from synk.gpu.comm import nccl_link
from synk.gpu.comm.nccl import NcclCommunicator
from synk.transport.comm import HostCommunicator, SharedArrays
from synk.transport.commands.sync import Aborted, ControlBlock, Doorbells
from synk.transport.memory.shm import Segment
from synk.values.errors import WorkerDied


class NcclGroup(HostGroup):
    """Ranks of the NCCL communicator."""

    def __init__(self, n_ranks):
        super().__init__(n_ranks)
        self.world = World()
        self.libraries = [FakeLibrary(self.world) for _ in range(n_ranks)]
        ways = zip(self.barriers, self.libraries, self.communicators, strict=True)
        self.inner = [NcclCommunicator(barrier, library, host) for barrier, library, host in ways]
        self.communicators = [OnDevice(inner) for inner in self.inner]

    def launches(self):
        """Return how many links were made, and how many are left."""
        made = [communicator for library in self.libraries for communicator in library.nccl.made]
        return len(made), sum(not communicator.aborted for communicator in made)

    def close(self):
        for inner in self.inner:
            inner.close()
            inner.close()
        assert self.launches()[1] == 0, "a link is left"
        super().close()


@pytest.fixture(autouse=True)
def casts_on_a_device_say_nothing():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "overflow|invalid value", RuntimeWarning)
        yield


def groups(*numbers):
    """Return a fixture: groups of so many ranks."""

    @pytest.fixture(params=numbers, ids="{}-ranks".format)
    def made(request):
        group = NcclGroup(request.param)
        yield group
        group.close()

    return made


group, several, two = groups(1, 2, 3), groups(2, 3), groups(2)


class TestNccl(CommunicatorSuite):
    """The suite of all communicators."""


class TestNcclDisagreement(DisagreementSuite):
    @pytest.fixture
    def group(self, several):
        return several

    def check_nothing_moved(self, group):
        # One link for all collectives: what ranks did not agree on was never launched.
        assert group.launches() == (group.n_ranks, group.n_ranks)


def device(values, dtype="float32"):
    return stand_in.ndarray(np.array(values, dtype))


def host(array):
    return array._value.tolist()


class TestWhereResultsAre:
    def test_an_array_that_needs_no_packing_is_reduced_where_it_is(self, group):
        arrays = [device([rank + 1.0] * 3) for rank in range(group.n_ranks)]
        stand_in.counts.reset()
        results = group.run(lambda comm: comm.inner.all_reduce(arrays[comm.rank], "sum"))
        total = sum(range(1, group.n_ranks + 1))
        for array, result in zip(arrays, results, strict=True):
            assert result is array
            assert host(array) == [total] * 3
        assert (stand_in.counts.uploads, stand_in.counts.downloads, stand_in.counts.launches) == (0, 0, 0)

    @pytest.mark.parametrize("dtype", ["float16", "int16", "uint16"])
    @pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
    def test_what_is_packed_comes_back_to_its_array(self, group, dtype, op):
        arrays = [device([[1, 2], [3, rank]], dtype) for rank in range(group.n_ranks)]
        expected = {
            "sum": [group.n_ranks, 2 * group.n_ranks, 3 * group.n_ranks, sum(range(group.n_ranks))],
            "max": [1, 2, 3, group.n_ranks - 1],
            "min": [1, 2, 3, 0],
            "prod": [1, 2**group.n_ranks, 3**group.n_ranks, 0],
        }[op]
        results = group.run(lambda comm: comm.inner.all_reduce(arrays[comm.rank], op))
        for array, result in zip(arrays, results, strict=True):
            assert result is array
            assert array._value.reshape(-1).tolist() == expected

    def test_a_transposed_array_is_written_to_and_rows_of_one_are_not(self, two):
        turned = [stand_in.ndarray(np.full((2, 3), 1.0, "float32").T) for _ in range(2)]
        rows = [stand_in.ndarray(np.broadcast_to(np.float32(2), (2, 2))) for _ in range(2)]

        def work(comm):
            return (
                comm.inner.all_reduce(turned[comm.rank], "sum"),
                comm.inner.all_reduce(rows[comm.rank], "sum"),
            )

        for rank, (one, other) in enumerate(two.run(work)):
            assert one is turned[rank]
            assert host(one) == [[2.0, 2.0]] * 3
            assert host(other) == [[4.0, 4.0]] * 2
            assert host(rows[rank]) == [[2.0, 2.0]] * 2

    @pytest.mark.parametrize("op", ["sum", "avg", "max"])
    def test_reduce_leaves_arrays_alone_unless_in_place(self, group, op):
        for root in range(group.n_ranks):
            for in_place in (False, True):
                arrays = [device([1.0, rank]) for rank in range(group.n_ranks)]

                def work(comm, arrays=arrays, root=root, in_place=in_place):
                    return comm.inner.reduce(arrays[comm.rank], op, root, in_place=in_place)

                for rank, result in enumerate(group.run(work)):
                    if rank == root and in_place:
                        assert result is arrays[rank]
                    else:
                        assert host(arrays[rank]) == [1.0, rank]
                        assert (result is None) == (rank != root)

    def test_broadcast_with_shared_arrays_fills_the_array(self, two):
        for shape in [(3,), (2, 2)]:
            arrays = [device(np.full(shape, rank)) for rank in range(2)]
            turned = [stand_in.ndarray(np.full(shape, rank, "float32").T) for rank in range(2)]

            def work(comm, arrays=arrays, turned=turned):
                one, other = arrays[comm.rank], turned[comm.rank]
                return (
                    comm.inner.broadcast(one, 1, SharedArrays([one], 0)),
                    comm.inner.broadcast(other, 1, SharedArrays([other], 0)),
                )

            for rank, (one, other) in enumerate(two.run(work)):
                assert one is arrays[rank]
                assert other is turned[rank]
                assert set(one._value.flat) == set(other._value.flat) == {1.0}

    @pytest.mark.parametrize("only", [0, 1])
    def test_gather_of_one_rank_moves_that_one_alone(self, two, only):
        names = []
        before(two, names.append)
        arrays = [device([rank] * (rank + 1)) for rank in range(2)]
        result, nothing = two.run(lambda comm: comm.inner.gather(arrays[comm.rank], only=only))
        assert [host(array) for array in result] == [[only] * (only + 1)]
        assert nothing is None
        assert sorted(names) == ["connect"] * 2 + ["recv", "send"] * only


class TestRefused:
    @pytest.mark.parametrize(
        ("dtype", "op"), [("int32", "avg"), ("bool", "sum"), ("bool", "avg"), ("complex64", "max")]
    )
    def test_what_has_no_meaning_is_refused_before_ranks_meet(self, two, dtype, op):
        outcomes = two.outcomes(lambda comm: comm.inner.all_reduce(device([1], dtype), op))
        assert [type(outcome) for outcome in outcomes] == [TypeError] * 2
        outcomes = two.outcomes(lambda comm: comm.inner.reduce(device([1], dtype), op))
        assert [type(outcome) for outcome in outcomes] == [TypeError] * 2
        assert two.launches() == (0, 0)


# --- faults ------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def fail(name):
    raise Broken(name)


def before(group, call):
    """Have all ranks call this before they call NCCL."""
    for library in group.libraries:
        library.nccl.before = call


class TestFaults:
    """After any of these, all ranks get out, no link is left half used, and the next command works."""

    def check_next_command(self, group, links):
        before(group, lambda name: None)
        for result in group.run(all_reduce):
            assert result.tolist() == [group.n_ranks] * 3
        assert group.launches() == (links * group.n_ranks, group.n_ranks)

    def test_a_rank_that_raises_before_the_meeting_costs_no_link(self, several):
        several.run(all_reduce)
        outcomes = several.outcomes(lambda comm: fail("") if comm.rank == 1 else all_reduce(comm))
        assert type(outcomes.pop(1)) is Broken
        assert [type(outcome) for outcome in outcomes] == [Aborted] * (several.n_ranks - 1)
        self.check_next_command(several, links=1)

    @pytest.mark.parametrize("what", ["allReduce", "reduce", "broadcast", "allGather", "send"])
    def test_ranks_leave_when_one_raises_at_the_launch(self, several, what):
        work = {
            "allReduce": all_reduce,
            "reduce": lambda comm: comm.reduce(np.ones(3), "sum"),
            "broadcast": lambda comm: comm.broadcast(np.ones(3)),
            "allGather": lambda comm: comm.all_gather(np.ones(3)),
            "send": lambda comm: comm.gather(np.ones(3)),
        }[what]
        several.run(all_reduce)
        last = several.libraries[-1].nccl
        last.before = lambda name: fail(name) if name == what else None
        *others, broken = several.outcomes(work)
        assert type(broken) is Broken
        assert [type(outcome) for outcome in others] == [Aborted] * (several.n_ranks - 1)
        assert several.launches() == (several.n_ranks, 0)
        self.check_next_command(several, links=2)

    def test_ranks_leave_when_one_has_no_memory_for_a_gather(self, several, monkeypatch):
        # NCCL connects two ranks within their first message, and waits there for the one that does not come.
        several.run(all_reduce)

        def no_memory(*_):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(several.inner[0], "_xp", SimpleNamespace(empty=no_memory))
            outcomes = several.outcomes(lambda comm: comm.gather(np.ones(3)))
        assert [type(outcome) for outcome in outcomes] == [MemoryError, *[Aborted] * (several.n_ranks - 1)]
        for result in several.run(all_reduce):  # makes new links, by which those who wait get out
            assert result.tolist() == [several.n_ranks] * 3
        wait_for_links()
        assert several.launches() == (2 * several.n_ranks, several.n_ranks)

    def test_messages_are_watched_once(self, two, monkeypatch):
        watched, calls = nccl_link.watched, []
        monkeypatch.setattr(nccl_link, "watched", lambda *given: (calls.append(1), watched(*given))[1])
        for n_calls in (4, 4, 6):
            two.run(lambda comm, root=n_calls // 6: comm.gather(np.ones(comm.rank + 1), root=root))
            assert len(calls) == n_calls  # two ranks connect, send to or receive from one, and then the other
        two.inner[1].close()
        two.run(lambda comm: comm.gather(np.ones(3)))
        assert len(calls) == 10

    def test_a_rank_that_aborts_tells_the_others_to_abort(self, two):
        two.run(all_reduce)
        all_abort = threading.Barrier(2)
        for library in two.libraries:
            library.nccl.at_abort = lambda: all_abort.wait(5)
        two.libraries[1].nccl.before = fail
        assert [type(outcome) for outcome in two.outcomes(all_reduce)] == [Aborted, Broken]
        for library in two.libraries:
            library.nccl.at_abort = lambda: None
        self.check_next_command(two, links=2)

    def test_ranks_leave_when_one_raises_before_connecting(self, two):
        two.libraries[0]._nccl.get_unique_id = lambda: fail("no id")
        outcomes = two.outcomes(all_reduce)
        assert [type(outcome) for outcome in outcomes] == [Broken, Aborted]
        del two.libraries[0]._nccl.get_unique_id
        self.check_next_command(two, links=1)

    def test_an_interrupt_while_waiting_gives_up_the_link_everywhere(self, two, monkeypatch):
        two.run(all_reduce)

        def stop():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(two.barriers[0], "look", stop)
            two.libraries[1].nccl.before = lambda name: time.sleep(0.05)  # late, so that rank 0 looks around
            outcomes = two.outcomes(all_reduce)
        assert [type(outcome) for outcome in outcomes] == [KeyboardInterrupt, Aborted]
        assert two.launches() == (2, 0)
        self.check_next_command(two, links=2)

    def test_a_link_that_one_rank_lost_is_made_anew_by_all(self, group):
        group.run(all_reduce)
        group.inner[-1].close()
        self.check_next_command(group, links=2)

    def test_ranks_that_lost_links_of_different_age_agree(self, two):
        for rank in (0, 1, 0):
            two.run(all_reduce)
            two.inner[rank].close()
        self.check_next_command(two, links=4)

    def test_an_error_in_the_background_is_told(self, two, monkeypatch):
        monkeypatch.setattr(nccl_link, "GRACE_SECONDS", 0.05)
        two.run(all_reduce)

        def never(name):
            two.libraries[0].nccl.made[0].async_error = NcclError("NCCL_ERROR_REMOTE_ERROR")
            time.sleep(0.3)

        two.libraries[1].nccl.before = never
        told, aborted = two.outcomes(all_reduce)
        assert type(told) is RuntimeError
        assert str(told).startswith(
            "NCCL failed in all_reduce on rank 0: NCCL_ERROR_REMOTE_ERROR; set NCCL_DEBUG"
        )
        assert type(aborted) is Aborted
        self.check_next_command(two, links=2)

    def test_a_result_that_cupy_has_no_name_for_is_told(self, two, monkeypatch):
        monkeypatch.setattr(nccl_link, "GRACE_SECONDS", 0.02)
        names = {0: "NCCL_ERROR_SUCCESS"}
        before(two, lambda name: names[7])  # ncclInProgress, as CuPy would raise it
        outcomes = two.outcomes(all_reduce)
        assert any("connecting ranks on rank" in str(it) and "its result is 7;" in str(it) for it in outcomes)
        assert two.launches() == (0, 0)
        self.check_next_command(two, links=1)

    def test_an_error_in_the_background_waits_for_what_is_behind_it(self, two):
        two.run(all_reduce)

        def breaks(name):
            two.libraries[0].nccl.made[0].async_error = NcclError("NCCL_ERROR_REMOTE_ERROR")
            time.sleep(0.05)
            fail(name)

        two.libraries[1].nccl.before = breaks
        assert [type(outcome) for outcome in two.outcomes(all_reduce)] == [Aborted, Broken]
        self.check_next_command(two, links=2)

    @pytest.mark.parametrize("connected", [True, False])
    def test_an_error_of_a_call_is_told(self, two, monkeypatch, connected):
        monkeypatch.setattr(nccl_link, "GRACE_SECONDS", 0.02)
        if connected:
            two.run(all_reduce)

        def refuse(name):
            raise NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR")

        before(two, refuse)
        outcomes = two.outcomes(all_reduce)
        assert {type(outcome) for outcome in outcomes} <= {RuntimeError, Aborted}
        said = "NCCL failed in all_reduce on rank" if connected else "NCCL failed in connecting ranks on rank"
        assert any(said in str(it) and "UNHANDLED_CUDA" in str(it) for it in outcomes)
        self.check_next_command(two, links=2 if connected else 1)

    def test_a_rank_that_waits_for_connections_sees_failures(self, two):
        late = threading.Event()
        two.libraries[0].nccl.before = lambda name: late.wait(5)
        two.libraries[1]._nccl.NcclCommunicator = lambda *_: fail("connect")
        try:
            assert [type(outcome) for outcome in two.outcomes(all_reduce)] == [Aborted, Broken]
        finally:
            # The thread that nobody could stop ends, and gives up what it made.
            two.world.cliques[(1).to_bytes(128, "little")] = clique = Joined()
            late.set()
            wait_for_links()
        assert clique.joined == {0, 1}
        assert two.launches() == (1, 0)
        del two.libraries[1]._nccl.NcclCommunicator
        before(two, lambda name: None)
        two.run(all_reduce)


class Joined:
    """A clique in which rank 1 is already."""

    n_ranks = 2

    def __init__(self):
        self.joined = {1}
        self.aborted = set()
        self.waiting = [[], []]


class TestProcesses:
    """A rank in a process of its own dies in the middle of a collective."""

    @pytest.fixture
    def shared(self):
        control, bells = ControlBlock(2), Doorbells(2)
        yield control, bells
        bells.close()
        control.close()

    @pytest.mark.parametrize("at", ["connect", "allReduce"])
    def test_a_death_is_seen_while_waiting_for_the_device(self, shared, at, monkeypatch):
        control, bells = shared
        monkeypatch.setattr(FakeLibrary, "connect", lone_connect)

        def die(name):
            if name == at:
                os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:
            try:
                library = FakeLibrary(World())
                library.nccl.before = die
                barrier = make_barrier(control, bells, 1)
                barrier.begin(1)
                all_reduce(OnDevice(nccl_communicator(barrier, library)))
            finally:
                os._exit(9)
        life = os.pidfd_open(child)
        try:
            library = FakeLibrary(World())
            if at == "connect":
                library.connect = late_connect(library)
            barrier = make_barrier(control, bells, 0, lives=[life], on_death=told_death)
            barrier.begin(1)
            comm = nccl_communicator(barrier, library)
            started = time.monotonic()
            with pytest.raises(WorkerDied):
                all_reduce(OnDevice(comm))
            assert time.monotonic() - started < 5
            assert all(communicator.aborted for communicator in library.nccl.made)
            wait_for_links()
        finally:
            os.close(life)
            status = os.waitpid(child, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL


def nccl_communicator(barrier, library):
    return NcclCommunicator(barrier, library, HostCommunicator(barrier, Segment.create))


def lone_connect(library, n_ranks, unique_id, rank):
    """Connect without the other process, which a fake of threads cannot see."""
    library.nccl.before("connect")
    library.nccl.world.cliques[unique_id] = clique = Joined()
    clique.joined = {1 - rank}
    before, library.nccl.before = library.nccl.before, lambda name: None
    try:
        communicator = library.nccl.NcclCommunicator(n_ranks, unique_id, rank)
    finally:
        library.nccl.before = before
    clique.progress = lambda: None  # what is launched never ends
    return communicator


def late_connect(library):
    """Return a function that connects without the other process, long after that has died."""

    def connect(*arguments):
        time.sleep(0.5)
        return lone_connect(library, *arguments)

    return connect


def wait_for_links():
    for thread in threading.enumerate():
        if thread.name == "synk NCCL link":
            thread.join(5)


def told_death(descriptor):
    raise WorkerDied(1, 0, "signal SIGKILL", "in a collective", "f")
