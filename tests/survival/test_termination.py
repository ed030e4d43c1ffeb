"""SIGTERM to the master: it unwinds and closes, as ^C does, and a second one ends it."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from scripts import PROLOGUE, WORLD, alive, check_gone, script

from synk.processes.termination import Termination, _unwind

DEADLINE = 90


@pytest.fixture(autouse=True)
def handler_as_before():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_it_is_there_from_install_to_restore():
    termination = Termination()
    termination.install()
    assert signal.getsignal(signal.SIGTERM) is _unwind
    termination.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda number, frame: None])
def test_a_handler_of_the_script_s_own_stays(own):
    signal.signal(signal.SIGTERM, own)
    termination = Termination()
    termination.install()
    assert signal.getsignal(signal.SIGTERM) is own
    termination.restore()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_handler_that_the_script_set_later_stays():
    termination = Termination()
    termination.install()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    termination.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


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
    text = PROLOGUE.format(deadline=DEADLINE) + WORLD + textwrap.dedent(body)
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as master:
        try:
            pids = list(map(int, master.stdout.readline().split()))
            assert pids, master.stderr.read()
            for _ in range(times):
                time.sleep(0.4)
                assert all(map(alive, pids[:1]))
                master.send_signal(signal.SIGTERM)
                began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                master.wait(6)
            took = time.monotonic() - began
        finally:
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
        "time.sleep(60)",
        pytest.param("while True: act(f, 0, 'sleep')", id="the master computes"),
        pytest.param("while True: act(f, 1, 'sleep')", id="the master waits"),
        pytest.param("while True: act(both, 2, 'sleep')", id="in a collective"),
        pytest.param("act(f, 1, 'python')", id="a worker hangs"),
        pytest.param("while True: synk.restart()", id="restarts"),
    ],
)
def test_a_script_unwinds_closes_and_says_so(work):
    code, took, output, errors = terminated(START.format(work=work))
    assert code == 128 + signal.SIGTERM
    assert took < 5, took
    assert output.split() == ["unwound", "at", "exit"]
    assert "Traceback" not in errors, errors


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


def test_workers_end_of_it_and_do_not_unwind():
    done = script(
        WORLD
        + """
import atexit
atexit.register(print, "at exit")
world(2)
os.kill(synk.pids()[1], signal.SIGTERM)
assert raised(synk.WorkerDied, lambda: [fine() for _ in range(100)]).cause == "signal SIGTERM"
"""
    )
    assert done.stdout == "at exit\n"
