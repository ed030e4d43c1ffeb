"""Restarts that fail, are refused or interrupted leave the run closed or as it was, and nothing behind."""

import pytest

from support.processes.peopled import peopled
from support.processes.scripts import WORLD, in_world, script
from support.slow import slow

SHORT = """
from synk.transport.processes import process as watch
from synk.run.launch import crew
crew.REAP_SECONDS = watch.REAP_SECONDS = 0.3
"""

GONE = 42  # the exit code of a script whose debugger somebody else has ended


@pytest.mark.slow
@pytest.mark.parametrize("end", ["restart", "close"])
def test_a_worker_that_a_debugger_holds_is_left_to_the_kernel_with_a_warning(end):
    body = (
        WORLD
        + SHORT
        + f"""
def be_traced():
    me, (read, write) = os.getpid(), os.pipe()
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: any
    tracer = os.fork()
    if tracer == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # nothing but SIGKILL ends it early
        os.write(write, b"y" if libc.ptrace(0x4206, me, 0, 0) == 0 else b"n")  # PTRACE_SEIZE
        time.sleep(90)
        os._exit(0)
    assert os.read(read, 1) == b"y"
    print(tracer, file=sys.stderr)

ACTS["traced"] = be_traced
world(3)
try:
    act(f, 2, "traced")
except synk.RemoteError:
    print("nobody may trace here")
    sys.exit()
synk.commit()
pid = synk.pids()[2]
tracer = int(next(line for line in open(f"/proc/{{pid}}/status") if line.startswith("TracerPid")).split()[1])
began = time.monotonic()
caught = warned(synk.{end})
assert time.monotonic() - began < 4
held_by = open(f"/proc/{{tracer}}/status").read()  # it is there, whatever else fails
if not caught and "(zombie)" in held_by:
    os._exit({GONE})
(said,) = [str(one.message) for one in caught] or [held_by]
assert f"rank 2 (pid {{pid}}, " in said and f"traced by pid {{tracer}}" in said, said
if {end!r} == "restart":
    assert fine()
os.kill(tracer, signal.SIGKILL)
deadline = time.monotonic() + 5
while os.path.exists(f"/proc/{{pid}}"):  # reaped, when it ends
    assert time.monotonic() < deadline
    time.sleep(0.01)
synk.close()
"""
    )
    for _ in range(3):
        done = script(body, check=False)
        if done.returncode != GONE:
            break
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["idle", "in a barrier"])
def test_a_master_that_may_not_signal_its_workers_any_more_restarts_and_closes(where):
    script(
        WORLD
        + SHORT
        + f"""
def refuse(*_):  # as the kernel does after setuid
    raise PermissionError(1, "Operation not permitted")

warnings.simplefilter("error")
world(3)
synk.commit()
signal.pidfd_send_signal = refuse
for _ in range(2):
    pids = synk.pids()[1:]
    if {where!r} == "in a barrier":
        with contextlib.suppress(synk.WorkerDied):
            act(both, 1, "leave")
    synk.restart()
    assert all(map(gone, pids))
    assert fine()
pids = synk.pids()[1:]
synk.close()
assert all(map(gone, pids))
"""
    )


@pytest.mark.slow
def test_a_restart_that_is_not_allowed_changes_nothing():
    in_world("""
raised(synk.SynkStateError, synk.restart)
raised(synk.SynkStateError, synk.commit)
world(2)
caught = []

def handler(number, frame):
    for verb in (synk.restart, synk.commit):
        caught.append(str(raised(synk.SynkStateError, verb)))

signal.signal(signal.SIGALRM, handler)
pids = synk.pids()
for rank in (0, 1):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    assert act(f, rank, "sleep") == 1
assert len(caught) == 4 and "restart was called in the middle of acting" in caught[0], caught
assert synk.pids() == pids and fine()

faulthandler.cancel_dump_traceback_later()
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    raised(synk.SynkStateError, synk.restart)
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert fine()
synk.close()
assert "no run is open" in str(raised(synk.SynkStateError, synk.restart))
""")


@pytest.mark.slow
@pytest.mark.parametrize("refused", [slow("fork"), "descriptors"])
def test_a_restart_that_fails_leaves_the_run_broken_and_the_next_one_works(refused):
    peopled(
        f"""
import errno, resource
world(3)
people()
lengths = synk.get_lengths(ragged)
synk.commit()
kept, drawn = state(), [draw(), draw()]
lose(1)
fork, asked = os.fork, []

def refuse():
    asked.append(1)
    if len(asked) == 2:
        raise BlockingIOError(errno.EAGAIN, "no process for you")
    return fork()

limits = resource.getrlimit(resource.RLIMIT_NOFILE)
n_held, failures = [], 0
os.fork, asked = refuse, [1]
raised(OSError, synk.restart)  # the old workers' descriptors are closed
for attempt in range(60):
    if "{refused}" == "fork":
        os.fork, asked[:] = refuse, []
    else:  # room for a few descriptors more each time
        room = len(os.listdir("/proc/self/fd")) + 2 * attempt
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, limits[1]))
    try:
        synk.restart()
    except OSError as error:
        assert error.errno == errno.EAGAIN or "files" in str(error), error
        failures += 1
        n_restarted = len(synk.pids()) - 1
    else:
        n_restarted = None
    finally:
        os.fork = fork
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if n_restarted is None:
        with contextlib.suppress(synk.WorkerDied):  # the workers open a few, too
            assert fine()
        break
    n_held.append(held()[0])
    assert n_restarted == 0 and held()[2] == []  # those that came are gone again
    for call in (fine, synk.commit, lambda: synk.data(ROWS)):
        raised(synk.SynkError, call)
    if failures == 5 and "{refused}" == "fork":
        break
assert failures >= 5, failures
assert len(set(n_held)) == 1, n_held
synk.restart()
check_back(kept, drawn)
synk.close()
""",
        deadline=200,
    )


@pytest.mark.slow
def test_a_run_that_could_not_be_restarted_is_closed_as_any_other():
    peopled("""
world(3)
people()
synk.commit()
fork = os.fork

def refuse():
    raise BlockingIOError("no process for you")

os.fork = refuse
raised(OSError, synk.restart)
os.fork = fork
mine = synk.run.session.current.session("test").memory.variables
synk.close()
del d, view
assert held()[1:] == (0, []), held()
assert (w.get_value() == np.random.default_rng(0).normal(size=5)).all()  # plain variables again
world(2)
""")


@pytest.mark.slow
def test_an_interrupted_restart_leaves_nothing_and_the_next_one_works():
    peopled(
        """
world(4)
people()
lengths = synk.get_lengths(ragged)
synk.commit()
kept, drawn = state(), [draw(), draw()]
signal.signal(signal.SIGALRM, press)
interrupted = 0
synk.restart()
began = time.monotonic()
synk.restart()
took = time.monotonic() - began
n_held = held()[0]
delays = np.linspace(0.0005, 1.2 * took, 16)
for delay in delays:
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        synk.restart()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Pressed:
        interrupted += 1
    else:
        assert fine()
        continue
    if interrupted % 2:
        assert len(held()[2]) in (0, 3), (delay, held())
    synk.restart()
    assert len(held()[2]) == 3, (delay, held())
    assert held()[0] <= n_held, (delay, held(), n_held)
assert interrupted > 3, interrupted
check_back(kept, drawn)
synk.close()
del d, view
assert held()[1:] == (0, []), held()
""",
        deadline=200,
    )


@pytest.mark.slow
def test_a_restart_that_the_system_refuses_may_be_tried_with_fewer():
    in_world("""
from synk.run.launch import start_workers as launching
world(3)
fork_child = launching.fork_child

def refuse(body):
    if body.args[0].rank > 1:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork_child(body)

synk.commit()
launching.fork_child = refuse
before = held()[2]
raised(BlockingIOError, synk.restart)
assert not held()[2], held()
raised(synk.SynkStateError, f, ROWS, -1, 0)
synk.restart(2)
assert len(synk.pids()) == 2 and fine()
""")
