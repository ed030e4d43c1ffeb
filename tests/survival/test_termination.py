"""SIGTERM to the master: it unwinds and closes, as ^C does, and a second one ends it."""

import contextlib
import signal
import subprocess
import textwrap
import threading
import time

import pytest

from support.processes.scripts import WORLD, alive, check_gone, in_world, script, started
from support.slow import slow
from synk.transport.processes.signals import Termination, Unwinding


@pytest.fixture(autouse=True)
def handler_as_before():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_it_is_there_from_install_to_restore():
    termination = Termination()
    termination.install()
    assert isinstance(signal.getsignal(signal.SIGTERM), Unwinding)
    termination.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda number, frame: None])
@pytest.mark.parametrize("later", [False, True])
def test_a_handler_of_the_script_s_own_stays(own, later):
    termination = Termination()
    if later:
        termination.install()
    signal.signal(signal.SIGTERM, own)
    if not later:
        termination.install()
    assert signal.getsignal(signal.SIGTERM) is own
    termination.restore()
    assert signal.getsignal(signal.SIGTERM) is own


def test_other_threads_set_no_handlers():
    termination = Termination()
    thread = threading.Thread(target=termination.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    termination.restore()


def test_the_first_raises_and_the_second_would_kill():
    Termination().install()
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def terminated(body, times=1):
    """Send SIGTERM to a script that has printed its pids; return exit code, seconds after it, and output."""
    with started(WORLD + textwrap.dedent(body)) as (master, pids):
        for _ in range(times):
            time.sleep(0.4)
            assert all(map(alive, pids[:1]))
            master.send_signal(signal.SIGTERM)
            began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            master.wait(6)
        took = time.monotonic() - began
        master.kill()
        output, errors = master.communicate()
    check_gone(pids, 2)
    return master.returncode, took, output, errors


START = """
import atexit
atexit.register(print, "at exit")
world(3)
synk.commit()
print(*synk.pids(), flush=True)
try:
    {work}
finally:
    print("unwound")
"""


@pytest.mark.parametrize(
    "work",
    [
        slow("time.sleep(60)", id="idle"),
        slow("while True: act(f, 0, 'sleep')", id="the master computes"),
        pytest.param("while True: act(f, 1, 'sleep')", id="the master waits"),
        slow("while True: act(both, 2, 'sleep')", id="in a collective"),
        slow("act(f, 1, 'python')", id="a worker hangs"),
        pytest.param("while True: synk.restart()", id="restarts"),
    ],
)
def test_a_script_unwinds_closes_and_says_so(work):
    code, took, output, errors = terminated(START.format(work=work))
    assert code == 128 + signal.SIGTERM
    assert took < 5, took
    assert output.split() == ["unwound", "at", "exit"]
    assert "Traceback" not in errors, errors


@pytest.mark.slow
def test_a_second_one_ends_the_script_at_once():
    code, took, output, _ = terminated(
        """
        world(3)
        print(*synk.pids(), flush=True)
        try:
            time.sleep(60)
        finally:
            time.sleep(60)
            print("never")
        """,
        times=2,
    )
    assert code == -signal.SIGTERM
    assert took < 1, took
    assert output == ""


@pytest.mark.slow
def test_a_script_with_a_handler_of_its_own_has_it_called():
    code, _, output, _ = terminated("""
        def own(number, frame):
            print("mine")
            sys.exit(7)
        signal.signal(signal.SIGTERM, own)
        world(2)
        print(*synk.pids(), flush=True)
        time.sleep(60)
        """)
    assert (code, output) == (7, "mine\n")


# --- signals to all processes of a job -----------------------------------------------------------------

JOB = """
os.setpgid(0, 0)

def save(number, frame):
    print("saved by", "the script" if os.getpid() == MASTER else "a worker", flush=True)

for number in (signal.SIGUSR1, signal.SIGXCPU):
    signal.signal(number, save)
"""


@pytest.mark.parametrize("number", ["SIGUSR1", slow("SIGXCPU")])
@pytest.mark.parametrize("thread", ["main", slow("other")])
def test_handlers_of_the_script_run_in_the_script_only(number, thread):
    done = script(
        JOB
        + WORLD
        + f"""
world(3) if {thread!r} == "main" else fork_in_a_thread()
os.killpg(0, signal.{number})
assert fine()
synk.restart()
os.killpg(0, signal.{number})
assert fine()
synk.close()
"""
    )
    assert done.stdout == "saved by the script\n" * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM"],
)
def test_workers_ignore_what_schedulers_send(number):
    in_world(f"""
world(3)
for pid in synk.pids()[1:]:
    os.kill(pid, signal.{number})
assert fine()
later(0.1, os.kill, synk.pids()[1], signal.{number})
act(both, 1, "sleep")
assert fine()
""")


def test_workers_ignore_many_signals_at_once():
    """Their handlers run one inside the other, on a stack that must have room for all of them."""
    in_world("""
world(2)
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM]
for _ in range(30):
    for number in numbers:
        os.kill(synk.pids()[1], number)
    assert fine()
""")


@pytest.mark.parametrize(
    "work", [slow("time.sleep(60)"), "act(both, 1, 'sleep')", slow("act(f, 0, 'sleep')")]
)
def test_a_group_that_is_told_to_end_still_gathers(work):
    done = in_world(
        f"""
world(3)
os.setpgid(0, 0)
for pid in synk.pids()[1:]:
    os.setpgid(pid, os.getpid())
later(0.3, os.killpg, os.getpid(), signal.SIGTERM)
try:
    {work}
finally:
    assert (synk.gather(v) == 1).all()
    print("gathered", flush=True)
""",
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stdout == "gathered\n"


@pytest.mark.slow
def test_programs_that_a_worker_starts_can_be_ended():
    in_world("""
import subprocess

def start_one():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(0.05)
    child.terminate()
    assert child.wait(5) == -signal.SIGTERM

ACTS["program"] = start_one
world(2)
act(f, 1, "program")
""")


# --- children of the script ----------------------------------------------------------------------------


@pytest.mark.slow
def test_children_of_the_script_end_of_it_as_any_process():
    in_world("""
import multiprocessing

def native():
    ctypes.PyDLL(None).pause()  # holds the lock that a handler in Python would need

def python():
    time.sleep(60)

world(2)
warnings.simplefilter("ignore", DeprecationWarning)
faulthandler.cancel_dump_traceback_later()
context = multiprocessing.get_context("fork")
for work in (native, python):
    children = [context.Process(target=work, daemon=True) for _ in range(4)]
    for child in children:
        child.start()
        child.terminate()
    for child in children:
        child.join(5)
        assert child.exitcode == -signal.SIGTERM, child.exitcode
assert fine()
""")


def test_a_handler_that_a_child_inherits_does_what_there_was_before():
    script(
        """
from synk.transport.processes.signals import hold_signals
from synk.transport.processes.signals import Unwinding

def ends(handle):
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, handle)  # as in a child that C code has forked
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(77)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert ends(Unwinding()) == -signal.SIGTERM
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
with hold_signals():
    assert ends(signal.getsignal(signal.SIGTERM)) == 5  # at once: nobody puts it back there
"""
    )
