"""What synk promises when ranks raise, die or are interrupted.

Each test is a script of its own with a deadline, so that a hang fails one test and nothing that dies is ours.
Asserts stand in the scripts: exit code 0 says that they held.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

DEADLINE = 25  # seconds for one script, of which a machine under load may need several to import PyTensor

PROLOGUE = '''
import faulthandler
faulthandler.dump_traceback_later({deadline} - 2, exit=True)

import contextlib, gc, os, select, signal, sys, threading, time
import numpy as np, pytensor, pytensor.tensor as pt, synk
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

MASTER = os.getpid()


class Act(Op):
    """The input; on one rank, something happens on the way where ``flag`` is set."""

    def __init__(self, rank, act):
        self.pid, self.act = synk.pids()[rank], act

    def make_node(self, x, flag):
        return Apply(self, [pt.as_tensor(x), pt.as_tensor(flag)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        x, flag = inputs
        if flag and os.getpid() == self.pid:
            self.act()
        outputs[0][0] = x.copy()


def acting(rank, act, name="acting"):
    """Return f(rows, flag), the sum of the rows; where flag is set, ``act()`` is called on ``rank``."""
    x, flag = pt.vector("x"), pt.scalar("flag")
    f = synk.function([x], (Act(rank, act)(x, flag).sum(), "sum"), [flag], name=name)
    f(ROWS, 0)  # compiled, before anything is timed
    return f


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


def sleep_long():
    wake = time.monotonic() + 60
    while time.monotonic() < wake:
        time.sleep(0.05)


def sleep_short():
    wake = time.monotonic() + 1
    while time.monotonic() < wake:
        time.sleep(0.05)


def gone(pid):
    """Whether a process has ended, be it that nobody waited for it yet."""
    try:
        stat = open(f"/proc/{{pid}}/stat").read()
    except FileNotFoundError:
        return True
    return stat[stat.rindex(")") + 2] in "ZX"


def await_end(pid):
    """Wait until a process and all its threads have ended."""
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], 5)[0]
    os.close(descriptor)


def later(seconds, call, *arguments):
    """Call from another thread, after the fork."""
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    timer.start()


def held():
    """What this process holds that outlives a careless run."""
    gc.collect()
    segments = open("/proc/self/maps").read().count("/dev/shm/")
    children = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
    return len(os.listdir("/proc/self/fd")), segments, children


ROWS = np.arange(12.0)
'''

EPILOGUE = """
faulthandler.cancel_dump_traceback_later()
"""


def script(body, *arguments, check=True, deadline=DEADLINE, **keywords):
    """Run ``body`` after the prologue; return its exit code, standard output and standard error."""
    text = PROLOGUE.format(deadline=deadline) + textwrap.dedent(body) + EPILOGUE
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=deadline,
        **keywords,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def alive(pid):
    """Say whether a process runs; a zombie does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] not in "ZX"
    return False


def check_gone(pids, seconds):
    """All of these processes end in time."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, f"still alive after {seconds} s: {list(filter(alive, pids))}"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def no_names_are_left():
    """Names in the file system of shared memory are those that were there before."""
    before = set(os.listdir("/dev/shm"))
    yield
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("synk-")} == set()


# --- a rank raises ---------------------------------------------------------------------------------

RAISING = """
class Custom(LookupError):
    def __init__(self, code, detail):
        super().__init__(code, detail)
        self.code = code

class NotMixing(Exception):
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
    def __str__(self):
        raise RuntimeError("even saying so fails")

def plain():
    raise ValueError("the value is wrong")

def custom():
    raise Custom(7, "with arguments")

def from_os():
    raise FileNotFoundError(2, "no such thing", "somewhere")

def local():
    class Local(KeyError):
        pass
    raise Local("nobody can import my class")

def unpicklable():
    error = ValueError("my lock cannot be pickled")
    error.lock = threading.Lock()
    raise error

def exits():
    sys.exit("leaving")

def interrupts():
    raise KeyboardInterrupt("pressed")

def base():
    raise BaseException("nothing in particular")

def huge():
    raise ValueError("x" * 1_000_000)

def mute():
    raise NotMixing(1)
"""

CHECK_RAISING = (
    RAISING
    + """
act, kind, message = sys.argv[1], eval(sys.argv[2]), sys.argv[3]
rank, n_ranks = map(int, sys.argv[4:])
synk.fork(n_ranks)
f = acting(rank, globals()[act])
v = pytensor.shared(np.ones(1000), name="v")
both = synk.sequence(f, (synk.all_reduce, v, "sum"))
before = held()[0]
for call in (f, both, f):  # the others wait in a collective, or do not
    try:
        call(ROWS, 1)
    except synk.RemoteError as error:
        caught = error
    assert isinstance(caught, kind), type(caught).__mro__
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


@pytest.mark.parametrize(
    ("act", "kind", "message", "rank", "n_ranks"),
    [
        ("plain", "ValueError", "ValueError: the value is wrong", 1, 2),
        ("plain", "ValueError", "ValueError: the value is wrong", 0, 3),
        ("plain", "ValueError", "ValueError: the value is wrong", 2, 3),
        ("custom", "Custom", "with arguments", 1, 3),
        ("from_os", "synk.RemoteError", "FileNotFoundError", 1, 2),
        ("local", "synk.RemoteError", "nobody can import my class", 1, 3),
        ("unpicklable", "ValueError", "my lock cannot be pickled", 1, 2),
        ("exits", "synk.RemoteError", "SystemExit: leaving", 1, 3),
        ("interrupts", "synk.RemoteError", "KeyboardInterrupt: pressed", 1, 2),
        ("base", "synk.RemoteError", "nothing in particular", 1, 2),
        ("huge", "ValueError", "x" * 1_000, 1, 3),
        ("mute", "synk.RemoteError", "NotMixing", 1, 2),
    ],
)
def test_a_rank_that_raises_is_reported_and_the_run_goes_on(act, kind, message, rank, n_ranks):
    script(CHECK_RAISING, act, kind, message, rank, n_ranks)


def test_all_failing_ranks_are_reported_and_only_they():
    script("""
    synk.fork(4)
    x = pt.vector("x")
    third = synk.function([x], (x[2], "gather"))  # ranks with fewer rows have no third one
    try:
        third(np.ones(10))
    except IndexError as error:
        assert isinstance(error, synk.RemoteError)
        assert [failure.rank for failure in error.failures] == [2, 3]
        assert str(error).count("Worker 2 of 4") == str(error).count("Worker 3 of 4") == 1
        assert "Worker 0" not in str(error) and "Worker 1" not in str(error)
    assert (third(np.ones(12)) == 1).all()
    """)


def test_one_rank_raises_what_one_process_raises():
    script("""
    synk.fork(1)
    x = pt.vector("x")
    third = synk.function([x], x[2])
    try:
        third(np.ones(2))
    except IndexError as error:
        assert not isinstance(error, synk.RemoteError)
    else:
        raise AssertionError("nothing was raised")
    assert third(np.ones(3)) == 1
    """)


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
        try:
            use()
        except NotImplementedError as error:
            assert [failure.rank for failure in error.failures] == [1, 2]
        else:
            raise AssertionError("nothing was raised")
    assert synk.function([x], (x.sum(), "sum"))(ROWS) == 66
    """)


# --- a worker dies -----------------------------------------------------------------------------------

CHECK_DEATH = """
def check_death(call, since, rank, cause, phase, function):
    try:
        call()
    except synk.WorkerDied as error:
        took, died = time.monotonic() - since(), error
    else:
        raise AssertionError("nothing was raised")
    assert took < 1, took
    assert (died.rank, died.pid) == (rank, pids[rank]), died
    assert (died.cause, died.phase, died.function) == (cause, phase, function), died
    assert f"rank {rank} (pid {pids[rank]}) died of {cause}" in str(died)

    # Every later call fails at once, with the same cause.
    before = time.monotonic()
    calls = [
        call,
        lambda: g(ROWS),
        lambda: synk.all_reduce(v),
        lambda: synk.broadcast(v, np.ones(5)),
        lambda: synk.get_value(0, v),
        synk.distribute,
    ]
    for later_call in calls:
        try:
            later_call()
        except synk.WorkerDied as error:
            assert (error.rank, error.cause, error.function) == (rank, cause, function), error
        else:
            raise AssertionError("a broken run went on")
    assert time.monotonic() - before < 0.3

    before = time.monotonic()
    synk.close()
    assert time.monotonic() - before < 5
    assert all(map(gone, pids[1:]))
    del died, calls, later_call, call  # they hold frames, which hold segments


def check_next_run():
    assert held()[1:] == (0, []), held()
    assert synk.fork(2) == 2
    assert summing()(ROWS) == 66
    synk.close()


def summing():
    x = pt.vector("x")
    return synk.function([x], (x.sum(), "sum"), name="summing")


def start(n_ranks):
    global pids, g, v
    synk.fork(n_ranks)
    pids, g, v = synk.pids(), summing(), pytensor.shared(np.ones(5), name="v")
    g(ROWS)
    synk.all_reduce(v)
"""


@pytest.mark.parametrize(
    ("number", "n_ranks", "rank", "first", "label"),
    [
        (signal.SIGKILL, 2, 1, "g(ROWS)", "summing"),
        (signal.SIGSEGV, 3, 2, "g(ROWS)", "summing"),
        (signal.SIGKILL, 4, 2, "synk.all_reduce(v)", "all_reduce"),
        (signal.SIGTERM, 2, 1, "synk.all_reduce(v)", "all_reduce"),
        # This needs a larger buffer, so the death is found before the command is sent.
        (signal.SIGKILL, 3, 1, "g(np.ones(500_000))", "summing"),
    ],
)
def test_a_worker_killed_while_idle_is_reported_by_the_next_call(number, n_ranks, rank, first, label):
    script(
        CHECK_DEATH
        + f"""
start({n_ranks})
os.kill(pids[{rank}], {int(number)})
await_end(pids[{rank}])
began = time.monotonic()
check_death(lambda: {first}, lambda: began, {rank}, "signal {number.name}", "idle", "{label}")
check_next_run()
"""
    )


@pytest.mark.parametrize("how", ["both(ROWS, 1)", "synk.all_reduce(v)"])
def test_survivors_of_a_death_come_out_of_their_collective(how):
    script(
        CHECK_DEATH
        + f"""
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
"""
    )


def test_closing_takes_five_seconds_however_many_workers_hold_on():
    script(
        CHECK_DEATH
        + """
start(5)
acts = [acting(rank, sleep_long) for rank in (1, 2, 3)] + [acting(4, kill)]
with contextlib.suppress(synk.WorkerDied):
    synk.sequence(*acts)(*[ROWS, 1] * 4)
began = time.monotonic()
synk.close()
assert time.monotonic() - began < 5
"""
    )


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize(
    ("act", "cause"), [("kill", "signal SIGKILL"), ("leave", "exit code 3"), ("segfault", "signal SIGSEGV")]
)
def test_a_worker_that_dies_in_a_function_is_reported_within_a_second(n_ranks, act, cause):
    script(
        CHECK_DEATH
        + f"""
start({n_ranks})
f = acting({n_ranks} - 1, {act})
began = time.monotonic()
check_death(lambda: f(ROWS, 1), lambda: began, {n_ranks} - 1, "{cause}", "computing", "acting")
check_next_run()
"""
    )


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_worker_that_dies_while_others_wait_in_a_collective_lets_them_out(n_ranks):
    script(
        CHECK_DEATH
        + f"""
start({n_ranks})
f = acting(1, kill)
both = synk.sequence(f, (synk.all_reduce, v, "sum"), name="both")
began = time.monotonic()
check_death(lambda: both(ROWS, 1), lambda: began, 1, "signal SIGKILL", "computing", "both")
check_next_run()
"""
    )


@pytest.mark.parametrize("cause", ["signal SIGKILL", "signal SIGABRT"])
def test_a_worker_killed_in_a_collective_is_reported_though_another_hangs(cause):
    script(
        CHECK_DEATH
        + f"""
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
"""
    )


def test_a_worker_killed_while_the_master_computes_is_reported_when_it_is_done():
    script(
        CHECK_DEATH
        + """
start(2)
f = acting(0, sleep_short)
later(0.3, os.kill, pids[1], signal.SIGKILL)
began = time.monotonic() + 1
check_death(lambda: f(ROWS, 1), lambda: began, 1, "signal SIGKILL", "idle", "acting")
check_next_run()
"""
    )


def test_all_workers_killed_at_once_are_survived():
    script(
        CHECK_DEATH
        + """
start(4)
for pid in pids[1:]:
    os.kill(pid, signal.SIGKILL)
list(map(await_end, pids[1:]))
try:
    g(ROWS)
except synk.WorkerDied as error:
    assert error.cause == "signal SIGKILL"
synk.close()
check_next_run()
"""
    )


@pytest.mark.parametrize(
    "use", ["synk.data(np.ones(3))", "d.set_length(10_000)", "synk.function([], v.sum())"]
)
def test_a_broken_run_refuses_data_and_functions_too(use):
    script(
        CHECK_DEATH
        + f"""
start(3)
d = synk.data(np.ones(3))
os.kill(pids[2], signal.SIGKILL)
await_end(pids[2])
with contextlib.suppress(synk.WorkerDied):
    g(ROWS)
try:
    {use}
except synk.WorkerDied as error:
    assert (error.rank, error.function) == (2, "summing"), error
else:
    raise AssertionError("a broken run went on")
"""
    )


def test_a_script_that_ends_with_a_broken_run_ends():
    done = script(
        CHECK_DEATH
        + """
start(3)
os.kill(pids[1], signal.SIGKILL)
g(ROWS)
g(ROWS)
""",
        check=False,
    )
    assert done.returncode == 1
    assert "WorkerDied: rank 1" in done.stderr


# --- the master dies --------------------------------------------------------------------------------

ORPHANS = """
synk.fork(3)
f = acting({rank}, sleep_long)
v = pytensor.shared(np.ones(5), name="v")
both = synk.sequence(f, (synk.all_reduce, v))
data = synk.data(np.ones(1_000_000))
print(*synk.pids(), flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "rank"),
    [
        ("time.sleep(60)", 0),  # idle
        ("f(ROWS, 1)", 1),  # waiting for a reply
        ("both(ROWS, 1)", 1),  # in a collective, as is rank 2
        ("both(ROWS, 1)", 0),  # computing, while the workers are in a collective
    ],
)
def test_workers_are_gone_when_the_master_is_killed(end, rank):
    text = PROLOGUE.format(deadline=DEADLINE) + ORPHANS.format(end=end, rank=rank)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as master:
        try:
            pids = list(map(int, master.stdout.readline().split()))
            assert len(pids) == 3
            time.sleep(0.3)
            assert all(map(alive, pids))
        finally:
            master.kill()
        check_gone(pids, 2)


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(MASTER, signal.SIGTERM)", "os.abort()"])
def test_workers_are_gone_however_the_master_ends(end):
    done = script(ORPHANS.format(end=end, rank=0), check=False)
    assert done.returncode in (7, 128 + signal.SIGTERM, -signal.SIGABRT)
    check_gone(list(map(int, done.stdout.split())), 2)


# --- the script ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('because')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -2),
    ],
)
def test_scripts_end_as_they_would_without_workers(end, code):
    done = script(
        f"""
    import atexit
    atexit.register(print, "at exit")
    print("unfinished line", end=" ")
    synk.fork(3)
    f = acting(1, kill)
    data = synk.data(ROWS)
    print(*synk.pids())
    {end}
    """,
        check=False,
    )
    assert done.returncode == code
    # Neither buffered output nor what was registered to run at exit comes twice.
    first, second, *rest = done.stdout.split("\n")
    assert first.startswith("unfinished line ")
    assert (second, rest) == ("at exit", [""])
    check_gone(list(map(int, first.split()[2:])), 0.5)
    expected = {"1 / 0": "ZeroDivisionError", "sys.exit('because')": "because"}.get(end, "")
    assert expected in done.stderr
    if not expected and code >= 0:
        assert done.stderr == ""


def test_a_script_ends_though_a_call_fails():
    done = script("synk.fork(3)\nacting(1, lambda: 1 / 0)(ROWS, 1)", check=False)
    assert done.returncode == 1


def test_a_child_of_the_script_may_exit_and_leaves_the_run_alone():
    done = script("""
    import warnings
    warnings.simplefilter("ignore")
    synk.fork(3)
    f = acting(1, kill)
    data = synk.data(ROWS)
    faulthandler.cancel_dump_traceback_later()  # a child would wait for its thread
    child = os.fork()
    if child == 0:
        sys.exit(5)  # runs what is registered at exit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert f(data, 0) == 66
    data.set_length(6)
    assert f(data, 0) == 15
    synk.close()
    """)
    assert done.stderr == ""


# --- ^C ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "collective"),
    [
        pytest.param(0, False, id="master computes"),
        pytest.param(1, False, id="master waits"),
        pytest.param(0, True, id="master computes, others in a collective"),
        pytest.param(1, True, id="master in a collective"),
    ],
)
def test_an_interrupt_ends_the_call_and_the_run_goes_on(rank, collective):
    script(
        f"""
    synk.fork(3)
    f = acting({rank}, sleep_short)
    v = pytensor.shared(np.ones(5), name="v")
    call = synk.sequence(f, (synk.all_reduce, v, "sum")) if {collective} else f
    later(0.4, os.kill, MASTER, signal.SIGINT)
    began = time.monotonic()
    try:
        call(ROWS, 1)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("nothing was raised")
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
        deadline=10,
    )


def interrupted(body, seconds, deadline=DEADLINE):
    """Run a script as a process group and press ^C once it is ready; return exit code, seconds and errors."""
    text = PROLOGUE.format(deadline=deadline) + textwrap.dedent(body)
    with subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as master:
        try:
            pids = list(map(int, master.stdout.readline().split()))
            time.sleep(0.4)
            os.killpg(master.pid, signal.SIGINT)
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                master.wait(seconds)
            took = time.monotonic() - began
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(master.pid, signal.SIGKILL)
        _, errors = master.communicate()
    check_gone(pids, 2)
    return master.returncode, took, errors


def test_ctrl_c_while_idle_ends_the_script_as_usual():
    code, took, errors = interrupted(
        """
        synk.fork(3)
        print(*synk.pids(), flush=True)
        time.sleep(60)
        """,
        5,
    )
    assert code == -signal.SIGINT
    assert took < 5
    assert errors.count("KeyboardInterrupt") == 1  # of the master only


@pytest.mark.parametrize("rank", [0, 1], ids=["master computes", "a worker computes"])
def test_ctrl_c_in_a_long_call_ends_the_script_within_five_seconds(rank):
    code, took, errors = interrupted(
        f"""
        synk.fork(3)
        f = acting({rank}, sleep_long)
        print(*synk.pids(), flush=True)
        f(ROWS, 1)
        """,
        6,
    )
    assert took < 5
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


# --- shared memory runs out --------------------------------------------------------------------------------


def in_small_shared_memory(body):
    """Run ``body`` where all shared memory is 24 MiB."""
    mount = "mount -t tmpfs -o size=24m tmpfs /dev/shm"
    try:
        allowed = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("needs user and mount namespaces")
    text = PROLOGUE.format(deadline=DEADLINE) + SMALL_SHARED_MEMORY + textwrap.dedent(body) + EPILOGUE
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, text],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


SMALL_SHARED_MEMORY = """
synk.fork(3)
x = pt.vector("x")
f = synk.function([x], (x.sum(), "sum"))
v = pytensor.shared(np.ones(2), name="v")

def check_full(call):
    try:
        call()
    except synk.SharedMemoryFull as error:
        assert isinstance(error, MemoryError)
        assert "needed" in str(error) and "of 24.0 MiB in /dev/shm" in str(error), error
        assert "--shm-size" in str(error)
    else:
        raise AssertionError("there was room")
    assert f(np.ones(5)) == 5
    synk.all_reduce(v)
"""


def test_full_shared_memory_is_an_error_and_the_run_goes_on():
    in_small_shared_memory("""
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


def test_results_that_do_not_fit_shared_memory_are_an_error_and_the_run_goes_on():
    in_small_shared_memory("""
    big = synk.function([x], (pt.outer(x, pt.ones(1 << 20)), "gather"))
    check_full(lambda: big(np.ones(9)))
    assert big(np.ones(3)).shape == (3, 1 << 20)
    """)


def test_results_after_some_that_did_not_fit_are_the_new_ones():
    in_small_shared_memory("""
    big = synk.function([x], (pt.outer(x, pt.ones(1 << 19)), "gather"))
    assert (big(np.full(3, 1.0)) == 1).all()
    try:
        big(np.ones(18))
    except (MemoryError, synk.RemoteError):
        pass
    else:
        raise AssertionError("there was room")
    assert (big(np.full(3, 2.0)) == 2).all()
    """)
