"""Ranks raise, die and are interrupted, and synk keeps its promises; each test runs a script of its own."""

import signal
import textwrap
from pathlib import Path

import pytest

from support.processes.scripts import (
    CHECK_DEATH,
    DEADLINE,
    EPILOGUE,
    PROLOGUE,
    after,
    in_world,
    run_in_small_shared_memory,
    script,
)
from support.slow import slow

with_deaths = after(CHECK_DEATH)

FAULTS = Path(__file__).parents[1] / "support" / "faults"

RAISING = f"""
sys.path.append({str(FAULTS)!r})
from acts import *

class NotMixing(Exception):
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
    def __str__(self):
        raise RuntimeError("even saying so fails")

def raise_from_os():
    raise FileNotFoundError(2, "no such thing", "somewhere")

def raise_interrupt():
    raise KeyboardInterrupt("pressed")

def raise_mute():
    raise NotMixing(1)

def refuse(*arguments):
    raise RuntimeError("cannot be unpickled")

class Unloadable(type):
    def __reduce__(cls):
        return refuse, ()

def raise_of_an_unloadable_class():
    raise Unloadable("Odd", (ValueError,), {{}})("its class fails there")
"""

CHECK_RAISING = (
    RAISING
    + """
n_ranks, cases = map(eval, sys.argv[1:])
synk.fork(n_ranks)
v = pytensor.shared(np.ones(1000), name="v")
for act, kind, message, rank in cases:
    print(act)
    f = acting(rank, globals()[act])
    both = synk.sequence(f, (synk.all_reduce, v, "sum"))
    before = held()[0]
    for call in (f, both, f):  # the others wait in a collective, or do not
        caught = raised(synk.RemoteError, call, ROWS, 1)
        assert isinstance(caught, eval(kind)), type(caught).__mro__
        assert [failure.rank for failure in caught.failures] == [rank]
        text = str(caught)
        assert f"rank {rank}: " in text and f"Worker {rank} of {n_ranks}" in text
        assert message in text, text[:500]
        assert f"in {act}" in text  # the line that raised, in the traceback of its rank
        del caught
        assert f(ROWS, 0) == 66
        synk.broadcast(v, np.ones(1000))
        synk.all_reduce(v, "sum")
        assert (synk.gather(v) == n_ranks).all()
    assert held()[0] <= before + 4, "descriptors are left behind"
synk.close()
assert held()[1:] == (0, [])
"""
)

RAISED = [  # what is called, the class of the error, what it says, and the rank
    ("raise_plain", "ValueError", "ValueError: the value is wrong", 2),
    ("raise_local", "synk.RemoteError", "nobody can import my class", 1),
    ("raise_unpicklable", "ValueError", "my lock cannot be pickled", 1),
    ("raise_bad_to_load", "BadToLoad", "it fails where it is unpickled", 1),
]
RAISED_RARELY = [
    ("raise_exit", "synk.RemoteError", "SystemExit: leaving", 1),
    ("raise_from_os", "synk.RemoteError", "FileNotFoundError", 1),
    ("raise_refused", "Refused", "with arguments", 1),
    ("raise_plain", "ValueError", "ValueError: the value is wrong", 1),
    ("raise_plain", "ValueError", "ValueError: the value is wrong", 0),
    ("raise_interrupt", "synk.RemoteError", "KeyboardInterrupt: pressed", 1),
    ("raise_base", "synk.RemoteError", "nothing in particular", 1),
    ("raise_mute", "synk.RemoteError", "NotMixing", 1),
    ("raise_of_an_unloadable_class", "synk.RemoteError", "its class fails there", 1),
    ("raise_huge", "ValueError", "x" * 1_000, 1),
]


@pytest.mark.parametrize(
    ("n_ranks", "cases"),
    [pytest.param(3, RAISED, id="usual"), slow(2, RAISED_RARELY, id="rare")],
)
def test_a_rank_that_raises_is_reported_and_the_run_goes_on(n_ranks, cases):
    script(CHECK_RAISING, n_ranks, cases)


def test_a_graph_that_does_not_compile_on_a_rank_is_reported():
    script("""
    class Rejecting(Act):
        def make_thunk(self, *arguments, **keywords):
            if os.getpid() != MASTER:
                raise NotImplementedError("not on this rank")
            return super().make_thunk(*arguments, **keywords)

    synk.fork(3)
    x = pt.vector("x")
    f = synk.function([x], (Rejecting(1, kill)(x, np.float64(0)).sum(), "sum"))
    for use in (synk.distribute, lambda: f(ROWS), lambda: f(ROWS)):
        error = raised(NotImplementedError, use)
        assert [failure.rank for failure in error.failures] == [1, 2]
    assert synk.function([x], (x.sum(), "sum"))(ROWS) == 66
    """)


@pytest.mark.parametrize(
    ("number", "n_ranks", "rank", "first", "label"),
    [
        slow(signal.SIGKILL, 2, 1, "g(ROWS)", "summing"),
        slow(signal.SIGSEGV, 3, 2, "g(ROWS)", "summing"),
        slow(signal.SIGKILL, 3, 2, "synk.all_reduce(v)", "all_reduce"),
        slow(signal.SIGVTALRM, 2, 1, "synk.all_reduce(v)", "all_reduce"),
        # This needs a larger buffer, so the death is found before the command is sent.
        (signal.SIGKILL, 3, 1, "g(np.ones(500_000))", "summing"),
    ],
)
def test_a_worker_killed_while_idle_is_reported_by_the_next_call(number, n_ranks, rank, first, label):
    with_deaths(f"""
start({n_ranks})
os.kill(pids[{rank}], {int(number)})
await_end(pids[{rank}])
began = time.monotonic()
check_death(lambda: {first}, lambda: began, {rank}, "signal {number.name}", "idle", "{label}")
check_next_run()
""")


@pytest.mark.slow
def test_where_the_kernel_keeps_no_cause_of_death_the_error_says_why():
    with_deaths("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
start(2)
os.kill(pids[1], signal.SIGKILL)
await_end(pids[1])
error = raised(synk.WorkerDied, g, ROWS)
assert "died of an unknown cause (SIGCHLD is ignored, so the kernel keeps no status)" in str(error), error
synk.restart()
assert g(ROWS) == 66
synk.close()
""")


@pytest.mark.parametrize("how", ["both(ROWS, 1)", slow("synk.all_reduce(v)")])
def test_survivors_of_a_death_come_out_of_their_collective(how):
    with_deaths(f"""
start(3)
f = acting(2, kill)
both = synk.sequence(f, (synk.all_reduce, v, "sum"))
if "both" not in {how!r}:
    os.kill(pids[2], signal.SIGKILL)
    await_end(pids[2])
with contextlib.suppress(synk.WorkerDied):
    {how}
began = time.monotonic()
synk.close()  # nobody computes: all leave at once
assert time.monotonic() - began < 1
""")


@pytest.mark.slow
def test_closing_takes_five_seconds_however_many_workers_hold_on():
    with_deaths("""
start(4)
acts = [acting(rank, sleep_long) for rank in (1, 2)] + [acting(3, kill)]
with contextlib.suppress(synk.WorkerDied):
    synk.sequence(*acts)(*[ROWS, 1] * 3)
began = time.monotonic()
synk.close()
assert time.monotonic() - began < 5
""")


@pytest.mark.parametrize("n_ranks", [slow(2), 3])
@pytest.mark.parametrize(
    ("act", "cause"),
    [slow("kill", "signal SIGKILL"), ("leave", "exit code 3"), slow("segfault", "signal SIGSEGV")],
)
def test_a_worker_that_dies_in_a_function_is_reported_within_a_second(n_ranks, act, cause):
    with_deaths(f"""
start({n_ranks})
f = acting({n_ranks} - 1, {act})
began = time.monotonic()
check_death(lambda: f(ROWS, 1), lambda: began, {n_ranks} - 1, "{cause}", "computing", "acting")
check_next_run()
""")


@pytest.mark.parametrize("cause", ["signal SIGKILL", slow("signal SIGABRT")])
def test_a_worker_killed_in_a_collective_is_reported_though_another_hangs(cause):
    with_deaths(f"""
start(3)
f = acting(2, sleep_long)  # rank 2 keeps the others waiting, and does not hear of the end either
both = synk.sequence(f, (synk.all_reduce, v, "sum"), name="both")
killed = []

def strike():
    os.kill(pids[1], signal.{cause.split()[1]})
    killed.append(time.monotonic())

later(0.5, strike)
check_death(lambda: both(ROWS, 1), lambda: killed[0], 1, "{cause}", "in a collective", "both")
check_next_run()
""")


@pytest.mark.slow
def test_a_worker_killed_while_the_master_computes_is_reported_when_it_is_done():
    with_deaths("""
start(2)
f = acting(0, sleep_short)
later(0.3, os.kill, pids[1], signal.SIGKILL)
began = time.monotonic() + 1
check_death(lambda: f(ROWS, 1), lambda: began, 1, "signal SIGKILL", "idle", "acting")
check_next_run()
""")


def test_a_broken_run_refuses_data_and_functions_too():
    with_deaths("""
start(3)
d = synk.data(np.ones(3))
os.kill(pids[2], signal.SIGKILL)
await_end(pids[2])
raised(synk.WorkerDied, g, ROWS)
for use in (
    lambda: synk.data(np.ones(3)),
    lambda: d.set_length(10_000),
    lambda: synk.function([], v.sum()),
):
    error = raised(synk.WorkerDied, use)
    assert (error.rank, error.function) == (2, "summing"), error
""")


def test_a_script_that_ends_with_a_broken_run_ends():
    done = with_deaths(
        """
start(3)
os.kill(pids[1], signal.SIGKILL)
g(ROWS)
g(ROWS)
""",
        check=False,
    )
    assert done.returncode == 1
    assert "WorkerDied: rank 1" in done.stderr


def test_a_rank_that_skips_a_collective_is_told_of_at_the_deadline():
    in_world("""
from synk.run.collectives.reduce import AllReduceStep
all_reduce = AllReduceStep.run

def skipping(step, rank):
    if rank.rank != 1:
        all_reduce(step, rank)

AllReduceStep.run = skipping
synk.fork(3, timeout=1)
v = pytensor.shared(np.ones(5), name="v")
began = time.monotonic()
error = raised(synk.SynkTimeout, synk.all_reduce, v)
assert time.monotonic() - began < 3
assert [state.phase for state in error.ranks] == ["in a collective", "idle", "in a collective"], error
assert error.late == (1,)
assert all("wait" in state.stack for state in error.ranks[2:]), error
AllReduceStep.run = all_reduce
warnings.simplefilter("ignore", synk.SynkWarning)
synk.restart()
synk.all_reduce(v, "sum")
assert (synk.gather(v) == 3).all()
""")


def test_ranks_that_bring_other_arrays_or_operations_are_refused_and_the_run_goes_on():
    in_world("""
from synk.transport.comm import HostCommunicator
all_reduce = HostCommunicator.all_reduce
BROUGHT = [
    (lambda array, op: (array[:-1], op), "[4]"),
    (lambda array, op: (array.reshape(5, 1), op), "[5, 1]"),
    (lambda array, op: (array.astype("f4"), op), "float32[5]"),
    (lambda array, op: (array, "max"), "'max'"),
]

def other(self, array, op, shared=None):
    if self.rank == 1 and (array < 0).all():  # where ranks disagree: the number of what this one brings
        array, op = BROUGHT[int(-array[0]) - 1][0](array, op)
        shared = None  # there are none for such an array
    return all_reduce(self, array, op, shared)

HostCommunicator.all_reduce = other
world(3)
for number, (_, told) in enumerate(BROUGHT, 1):
    odd = pytensor.shared(np.full(5, -float(number)), name="odd")
    for _ in range(3):
        error = raised(synk.CollectiveMismatch, synk.all_reduce, odd, "sum")
        assert isinstance(error, ValueError)
        # All of them refuse it, before data move.
        assert [failure.rank for failure in error.failures] == [0, 1, 2], error
        assert told in str(error), error
        assert (synk.gather(odd) == -number).all()
        assert fine()
""")


@pytest.mark.parametrize("in_collective", [slow(False), True])
@pytest.mark.parametrize("rank", [slow(0, id="master computes"), pytest.param(1, id="master waits")])
def test_an_interrupt_ends_the_call_and_the_run_goes_on(rank, in_collective):
    script(
        f"""
    synk.fork(3)
    f = acting({rank}, sleep_short)
    v = pytensor.shared(np.ones(5), name="v")
    call = synk.sequence(f, (synk.all_reduce, v, "sum")) if {in_collective} else f
    later(0.4, os.kill, MASTER, signal.SIGINT)
    began = time.monotonic()
    raised(KeyboardInterrupt, call, ROWS, 1)
    assert time.monotonic() - began < 3
    assert f(ROWS, 0) == 66
    synk.broadcast(v, np.ones(5))
    synk.all_reduce(v, "sum")
    assert (synk.gather(v) == 3).all()
    pids = synk.pids()
    synk.close()
    assert all(map(gone, pids[1:]))
    assert held()[1:] == (0, [])
    """,
    )


def in_small_shared_memory(body):
    """Run ``body`` where all shared memory is 24 MiB."""
    text = PROLOGUE.format(deadline=DEADLINE) + SMALL_SHARED_MEMORY + textwrap.dedent(body) + EPILOGUE
    done = run_in_small_shared_memory(text, mebibytes=24)
    assert done.returncode == 0, done.stdout + done.stderr


SMALL_SHARED_MEMORY = """
synk.fork(3)
x = pt.vector("x")
f = synk.function([x], (x.sum(), "sum"))
v = pytensor.shared(np.ones(2), name="v")

def check_full(call):
    error = raised(synk.SharedMemoryFull, call)
    assert isinstance(error, MemoryError)
    assert "needed" in str(error) and "of 24.0 MiB in /dev/shm" in str(error), error
    assert "--shm-size" in str(error)
    del error
    assert f(np.ones(5)) == 5
    synk.all_reduce(v)
"""


@pytest.mark.slow
def test_full_shared_memory_is_an_error_and_the_run_goes_on():
    in_small_shared_memory("""
    big = synk.function([x], (pt.outer(x, pt.ones(1 << 19)), "gather"))
    assert (big(np.full(3, 1.0)) == 1).all()
    raised(synk.SharedMemoryFull, big, np.ones(18))
    assert (big(np.full(3, 2.0)) == 2).all()  # the new results, not those of a call that failed
    check_full(lambda: big(np.ones(18)))
    del big
    gc.collect()
    data = synk.data(np.ones(1 << 20))  # 8 MiB
    check_full(lambda: synk.data(np.ones(3 << 20)))
    check_full(lambda: data.set_length(3 << 20))
    check_full(lambda: f(np.ones(3 << 20)))
    assert f(data) == 1 << 20
    large = pytensor.shared(np.ones(1 << 20), name="large")
    check_full(lambda: synk.all_reduce(large, "sum"))  # three times 8 MiB
    del data
    gc.collect()
    assert f(np.ones(1 << 20)) == 1 << 20
    synk.close()
    """)
