"""Scripts that tests run in a process of their own, with a deadline.

So a hang fails one test, and nothing that dies is ours. Asserts stand in the scripts: exit code 0 says that
they held.

    script(body) -> PROLOGUE + body -> subprocess, or a fork of the process in ``warm`` -> exit code, output
"""

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.processes.waiting import wait_until

warm = None  # a `warm.Warm` while there is one

DEADLINE = 90  # seconds for one script, of which a machine under load may need several to import PyTensor

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


def sleep_long(seconds=60):
    wake = time.monotonic() + seconds
    while time.monotonic() < wake:
        time.sleep(0.05)


def sleep_short():
    sleep_long(1)


def gone(pid):
    """Whether a process has ended, be it that nobody waited for it yet."""
    try:
        stat = open(f"/proc/{{pid}}/stat").read()
    except FileNotFoundError:
        return True
    return stat[stat.rindex(")") + 2] in "ZX"


def await_end(pid):
    """Wait until a process and all its threads have ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:  # it has, and nobody has to take note: SIGCHLD is ignored
        return
    assert select.select([descriptor], [], [], 5)[0]
    os.close(descriptor)


def later(seconds, call, *arguments):
    """Call from another thread, after the fork."""
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    timer.start()


def held():
    """Return the things of this process that outlive a careless run."""
    gc.collect()
    segments = open("/proc/self/maps").read().count("/dev/shm/")
    children = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
    return len(os.listdir("/proc/self/fd")), segments, children


def raised(kind, call, *arguments):
    """Return the error that a call must raise."""
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"no {{kind.__name__}} was raised")


ROWS = np.arange(12.0)
'''

EPILOGUE = """
faulthandler.cancel_dump_traceback_later()
"""


def script(body, *arguments, check=True, deadline=DEADLINE, **keywords):
    """Run ``body`` after the prologue; return its exit code, standard output and standard error."""
    text = PROLOGUE.format(deadline=deadline) + textwrap.dedent(body) + EPILOGUE
    done = run(text, *arguments, deadline=deadline, **keywords)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def after(setup):
    """Return a `script` whose bodies come after ``setup``."""
    return lambda body, *arguments, **keywords: script(setup + body, *arguments, **keywords)


def run(text, *arguments, deadline, **keywords):
    """Run a script as ``python -c`` does, in a new interpreter where it asks for more than that."""
    arguments = list(map(str, arguments))
    if warm and not keywords and warm.knows():
        return warm.run(text, arguments, deadline)
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=deadline, **keywords)


def run_in_small_shared_memory(text, mebibytes):
    """Run a script as ``python -c`` does where all shared memory is so large; skip where that cannot be."""
    mount = f"mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm"
    try:
        probe = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if probe.returncode:
        pytest.skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, text]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


def start(text):
    """Start a script as ``python -c`` does, its output piped."""
    if warm and warm.knows():
        return warm.start(text)
    command = [sys.executable, "-c", text]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def started(body):
    """Start a script whose first line is pids; yield the process and these, and kill it at the end."""
    with start(PROLOGUE.format(deadline=DEADLINE) + textwrap.dedent(body)) as master:
        try:
            pids = list(map(int, master.stdout.readline().split()))
            assert pids, master.stderr.read()
            yield master, pids
        finally:
            master.kill()


def alive(pid):
    """Say whether a process runs; a zombie does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] not in "ZX"
    return False


def check_gone(pids, seconds):
    """All of these processes end in time."""
    pids = list(pids)
    wait_until(lambda: not any(map(alive, pids)), seconds, f"some of {pids} are alive after {seconds} s")


CHECK_DEATH = """
def check_death(call, since, rank, cause, phase, function):
    died = raised(synk.WorkerDied, call)
    took = time.monotonic() - since()
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
        error = raised(synk.WorkerDied, later_call)
        assert (error.rank, error.cause, error.function) == (rank, cause, function), error
    assert time.monotonic() - before < 0.3

    before = time.monotonic()
    synk.close()
    assert time.monotonic() - before < 5
    assert all(map(gone, pids[1:]))
    del died, error, calls, later_call, call  # they hold frames, which hold segments


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

# A run in which one rank may do something bad, chosen by its row: also after restarts, which change pids.
WORLD = """
import ctypes, warnings

class ByRow(Op):
    def make_node(self, x, victim, what):
        return Apply(self, [pt.as_tensor(x), pt.as_tensor(victim), pt.as_tensor(what)], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        x, victim, what = inputs
        if victim in x:
            list(ACTS.values())[int(what)]()
        outputs[0][0] = x.copy()


def hang_in_python():
    while True:
        time.sleep(0.01)


def hang_in_native_code():
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
    while True:
        libc.pause()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


ACTS = {
    "kill": kill,
    "segfault": segfault,
    "leave": leave,
    "python": hang_in_python,
    "native": hang_in_native_code,
    "stopped": stop,
    "sleep": sleep_short,
}


def world(n_ranks, **options):
    global f, both, v
    synk.fork(n_ranks, **options)
    x, victim, what = pt.vector("x"), pt.scalar("victim"), pt.scalar("what")
    f = synk.function([x], (ByRow()(x, victim, what).sum(), "sum"), [victim, what], name="acting")
    v = pytensor.shared(np.ones(5), name="v")
    both = synk.sequence(f, (synk.all_reduce, v, "max"), name="both")
    assert fine()


def act(call, rank, what):
    # Every rank has the row with its own number.
    return call(np.arange(float(len(synk.pids()))), rank, list(ACTS).index(what))


def works():
    rows = np.arange(float(len(synk.pids())))
    return f(rows, -1, 0) == rows.sum() == both(rows, -1, 0) and (synk.gather(v) == 1).all()


def fine():
    with synk.timeout(60):  # it may have to compile
        return works()


def warned(call, *arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return caught


def restart():
    synk.restart()
    assert fine()


def lose(rank):
    os.kill(synk.pids()[rank], signal.SIGKILL)
    raised(synk.WorkerDied, fine)


def fork_in_a_thread():
    warnings.simplefilter("ignore", synk.SynkWarning)  # of threads
    thread = threading.Thread(target=world, args=(3,))
    thread.start()
    thread.join()


class Pressed(Exception):
    pass


def press(number, frame):
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise Pressed
"""

in_world = after(WORLD)
