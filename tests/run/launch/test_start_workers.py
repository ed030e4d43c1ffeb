"""Workers come to the world whole or not at all, and end with their master, whichever thread made them."""

import contextlib
import os
import signal
import time

import pytest

from support.processes.scripts import WORLD, alive, check_gone, in_world, script, started
from support.slow import slow
from synk.transport.processes.signals import hold_signals

pytestmark = pytest.mark.usefixtures("warm_interpreter")


@pytest.mark.slow
def test_a_fork_that_runs_out_of_descriptors_leaves_nothing():
    in_world(
        """
import resource
world(4)
synk.close()
limits, before, failures = resource.getrlimit(resource.RLIMIT_NOFILE), held(), 0
for spare in range(60):
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + spare, limits[1]))
    try:
        synk.fork(4)
    except OSError as error:
        assert "files" in str(error), error
        failures += 1
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        synk.close()
        break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert held() == before, (spare, held(), before)
assert failures > 10, failures
world(4)
synk.close()
assert held() == before, (held(), before)
""",
        deadline=60,
    )


@pytest.mark.slow
def test_an_interrupted_fork_leaves_nothing():
    in_world(
        """
world(4)
synk.close()
before = held()
signal.signal(signal.SIGALRM, press)
synk.fork(4)
synk.close()
began = time.monotonic()
synk.fork(4)
took = time.monotonic() - began
synk.close()
interrupted = 0
for delay in np.linspace(0.0003, took, 16):
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        synk.fork(4)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Pressed:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    synk.close()
    assert held() == before, (delay, held(), before)
assert interrupted > 3, interrupted
""",
        deadline=60,
    )


def test_a_child_that_is_interrupted_at_birth_does_not_go_on_with_the_script():
    done = script(
        """
        # ^C reaches all processes of a terminal: also one that is a worker since a microsecond ago.
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            synk.fork(3)
        except KeyboardInterrupt:
            print("a second master")
        print("after fork", os.getpid() == MASTER)
        x = pt.vector("x")
        assert synk.function([x], (x.sum(), "sum"))(ROWS) == 66
        synk.close()
        """
    )
    assert done.stdout == "after fork True\n"
    assert done.stderr == ""


def test_an_interrupt_in_the_middle_of_a_fork_comes_after_it_and_closes_the_run():
    script("""
    os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
    before = held()
    raised(KeyboardInterrupt, synk.fork, 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    deadline = time.monotonic() + 5
    while held() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() == before, (held(), before)
    """)


@pytest.mark.parametrize("broken", [slow("flush"), slow("deliver"), "both"])
def test_a_worker_whose_streams_raise_at_its_end_does_not_go_on_with_the_script(broken):
    done = in_world(f"""
import atexit, mmap
from synk.transport.processes.stderr_log import StderrLog

def refuse(*_):
    if os.getpid() != MASTER and ending[0]:
        raise RecursionError("no")

ending = mmap.mmap(-1, 1)  # all processes share it
world(2)
synk.close()
atexit.register(lambda: os.write(1, b"at exit\\n"))
if {broken!r} != "deliver":
    class Stream:
        def __getattr__(self, name):
            return getattr(stdout, name)
        flush = refuse
    stdout, sys.stdout = sys.stdout, Stream()
if {broken!r} != "flush":
    deliver = StderrLog.deliver
    StderrLog.deliver = lambda self: (refuse(), deliver(self))
try:
    world(2)
    ending[0] = 1
    synk.close()
except BaseException as error:
    os.write(1, b"in an except clause\\n")
finally:
    os.write(1, b"in a finally clause\\n")
""")
    assert done.stdout == "in a finally clause\nat exit\n"


@pytest.mark.slow
def test_the_end_of_the_thread_that_forked_is_not_the_end_of_its_workers():
    in_world("""
fork_in_a_thread()
time.sleep(0.5)
assert fine()
assert all(not gone(pid) for pid in synk.pids())
""")


@pytest.mark.parametrize("busy", [slow("time.sleep(60)"), "act(f, 1, 'python')"])
def test_workers_that_a_thread_forked_end_with_the_master_too(busy):
    body = f"fork_in_a_thread()\nprint(*synk.pids(), flush=True)\n{busy}"
    with started(WORLD + body) as (_, pids):
        assert len(pids) == 3
        time.sleep(0.3)
        assert all(map(alive, pids))
    check_gone(pids, 2)


@pytest.mark.parametrize("where", [slow("idle"), "in a barrier"])
def test_workers_end_when_the_master_becomes_another_program(where):
    body = f"""
def become():
    os.execv("/bin/sleep", ["sleep", "60"])

ACTS["become"] = become
world(3)
print(*synk.pids(), flush=True)
time.sleep(0.1)
act(both, 0, "become") if {where!r} == "in a barrier" else become()
"""
    with started(WORLD + body) as (_, pids):
        assert len(pids) == 3
        check_gone(pids[1:], 3)
        assert alive(pids[0])


def test_of_two_threads_that_fork_at_once_one_is_refused():
    script(
        """
        import warnings
        warnings.simplefilter("ignore", synk.SynkWarning)
        made, refused, start = [], [], threading.Barrier(3)

        def fork():
            start.wait()
            try:
                made.append(synk.fork(2))
            except synk.SynkStateError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=fork) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [2] and len(refused) == 2, (made, refused)
        assert all("another thread" in said or "open already" in said for said in refused), refused
        assert len(synk.pids()) == 2
        synk.close()
        assert held()[2] == []
        """
    )


def test_a_run_that_another_thread_forks_is_not_closed_in_the_middle():
    script(
        """
        import warnings
        warnings.simplefilter("ignore", synk.SynkWarning)
        forking, tried = threading.Event(), threading.Event()
        os.register_at_fork(after_in_parent=lambda: (forking.set(), tried.wait(5)))
        thread = threading.Thread(target=synk.fork, args=(2,))
        thread.start()
        forking.wait()
        for call in (synk.close, lambda: synk.fork(2)):
            error = raised(synk.SynkStateError, call)
            assert "another thread" in str(error), error
        tried.set()
        thread.join()
        assert len(synk.pids()) == 2
        synk.close()
        """
    )


# --- signals that wait ---------------------------------------------------------------------------------


@pytest.fixture
def calls():
    """The numbers of signals that a handler of SIGUSR1 was called with."""
    called = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    yield called
    signal.signal(signal.SIGUSR1, before)


def test_held_signals_come_when_the_outermost_body_is_done(calls):
    handler = signal.getsignal(signal.SIGUSR1)
    with hold_signals():
        with hold_signals():
            os.kill(os.getpid(), signal.SIGUSR1)
        assert calls == []
    assert calls == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_held_interrupts_are_raised_when_the_body_is_done():
    done = []

    def body():
        with hold_signals():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        body()
    assert done


def test_held_signals_come_after_a_body_that_raises(calls):
    with contextlib.suppress(ZeroDivisionError), hold_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
        raise ZeroDivisionError
    assert calls == [signal.SIGUSR1]


def test_ignored_signals_stay_ignored():
    with hold_signals():
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN  # Python's own doing
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


def test_a_run_works_where_standard_descriptors_are_closed():
    in_world("""
for descriptor in (0, 1, 2):
    os.close(descriptor)
world(3)
assert fine()
os.kill(synk.pids()[1], signal.SIGKILL)
assert raised(synk.WorkerDied, fine).stderr == ""
synk.close()
""")


@pytest.mark.slow
def test_a_run_works_without_standard_streams():
    in_world("""
sys.stdout = sys.stderr = None
world(2)
assert fine()
synk.close()
""")
