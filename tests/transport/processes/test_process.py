import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import time

import pytest

from support.processes import leaks
from synk.transport.processes.process import (
    REAPER,
    Process,
    die_with,
    forbid_core_dumps,
    fork_child,
    warn_of_survivors,
)
from synk.transport.processes.signals import ignore_signals
from synk.values.errors import SynkWarning

SECONDS = 10.0  # for what should take milliseconds


@pytest.fixture
def child():
    """Fork a child that runs a function; what is left of it is ended with the test."""
    pids = []

    def fork(work):
        pid = os.fork()
        if pid == 0:
            try:
                faulthandler.disable()  # deaths here are meant
                work()
                os._exit(0)
            finally:
                os._exit(99)
        pids.append(pid)
        return pid

    yield fork
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def forever():
    while True:
        time.sleep(60)


def ended(process):
    assert process.wait(SECONDS), f"pid {process.pid} lives on"
    return process.cause_of_death()


def check_end(process, cause):
    assert ended(process) == cause
    process.reap()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
def test_the_signal_that_killed_is_named(child, number):
    def work():
        forbid_core_dumps()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.Signals[number])

    check_end(Process(child(work)), f"signal {number}")


def test_a_signal_without_a_name_is_told_too(child):
    process = Process(child(lambda: os.kill(os.getpid(), signal.SIGRTMIN + 5)))
    check_end(process, f"signal {signal.SIGRTMIN + 5}")


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_told(child, code):
    check_end(Process(child(lambda: os._exit(code))), f"exit code {code}")


def test_asking_does_not_reap(child):
    process = Process(child(lambda: os._exit(3)))
    for _ in range(3):
        assert ended(process) == "exit code 3"
    process.reap()
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


@pytest.mark.parametrize("stopped", [False, True])
def test_running_and_stopped_processes_have_not_ended(child, stopped):
    process = Process(child(forever))
    if stopped:
        process.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert process.wait(0) is False
    assert process.wait(0.05) is False
    assert process.cause_of_death() == "an unknown cause"
    process.signal(signal.SIGKILL)
    assert ended(process) == "signal SIGKILL"
    process.reap()


def test_a_child_that_someone_else_waited_for(child):
    process = Process(child(lambda: os._exit(3)))
    os.waitpid(process.pid, 0)
    assert ended(process) == "an unknown cause (something else in this program waited for it)"
    process.signal(signal.SIGKILL)
    process.reap()


def test_a_script_that_ignores_sigchld_is_told_why_the_cause_is_unknown(child):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = Process(child(forever))
        process.signal(signal.SIGKILL)
        assert "SIGCHLD is ignored" in ended(process)
        assert process.reap()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_process_of_another_user_is_left_alone(child, monkeypatch):
    def refuse(*_):
        raise PermissionError

    process = Process(child(forever))
    with monkeypatch.context() as patched:
        patched.setattr(signal, "pidfd_send_signal", refuse)
        process.signal(signal.SIGKILL)
    assert not process.wait(0.05)
    process.signal(signal.SIGKILL)
    process.reap()


# --- processes that do not end -----------------------------------------------------------------------

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
PTRACE_SEIZE = 0x4206


@pytest.fixture
def traced(child):
    """Return a child that a debugger holds, and what lets it go."""
    read, write = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4

    def be_traced():
        libc.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
        os.write(write, b".")
        forever()

    def trace():
        os.write(write, b"y" if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0 else b"n")
        forever()

    pid = child(be_traced)
    os.read(read, 1)
    tracer = Process(child(trace))
    allowed = os.read(read, 1) == b"y"
    os.close(read)
    os.close(write)
    if allowed:
        yield Process(pid), lambda: tracer.signal(signal.SIGKILL)
    tracer.signal(signal.SIGKILL)
    tracer.reap()
    if not allowed:
        pytest.skip("nobody may trace here")


@pytest.mark.parametrize("told", [signal.SIGKILL, 0])
def test_waiting_for_a_process_that_does_not_end_has_a_limit(traced, told):
    process, let_go = traced
    process.signal(told)
    assert process.reap(0.05) is False
    assert "traced by pid" in process.state()
    (reaper,) = [thread for thread in threading.enumerate() if thread.name == REAPER]
    let_go()
    if not told:
        process.signal(signal.SIGKILL)
    reaper.join(SECONDS)
    assert not reaper.is_alive()
    assert process.fileno() == -1
    assert process.state() == "gone"


def test_survivors_are_named_in_a_warning(child):
    process = Process(child(forever))
    with pytest.warns(SynkWarning, match=rf"rank 1 \(pid {process.pid}, . \(\w+\)\): still there 5 s after"):
        warn_of_survivors({"rank 1": process})
    warn_of_survivors({})  # without any there is none
    process.signal(signal.SIGKILL)
    process.reap()


# --- what is forked never comes back -----------------------------------------------------------------


def raises():
    raise KeyboardInterrupt


def leaves():
    sys.exit(5)


def returns():
    pass


def has_no_memory():
    raise MemoryError


def goes_too_deep():
    goes_too_deep()


@pytest.mark.parametrize("live", [raises, leaves, returns, has_no_memory, goes_too_deep])
def test_a_fork_ends_however_its_life_does(live):
    me = os.getpid()
    try:
        process = Process(fork_child(live))
    finally:
        if os.getpid() != me:  # an assertion would be one of a second test run
            os._exit(77)
    assert ended(process) == "exit code 1"
    process.reap()


@pytest.mark.parametrize("thread", [False, True])
def test_no_handler_of_the_script_runs_in_a_fork(thread):
    said, pids = os.pipe(), []
    before = signal.signal(signal.SIGUSR1, lambda *_: os.write(said[1], b"h"))
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGUSR1) if said else None)

    def live():
        ignore_signals()
        os.write(said[1], b"w")
        os._exit(0)

    try:
        if thread:  # where `hold` is of no use: the thread that forks is the child's main one
            forker = threading.Thread(target=lambda: pids.append(fork_child(live)))
            forker.start()
            forker.join()
        else:
            pids.append(fork_child(live))
        check_end(Process(*pids), "exit code 0")
        assert os.read(said[0], 9) == b"w"
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(said[0])
        os.close(said[1])
        said = ()


def test_signals_of_the_parent_are_let_in_again(child):
    fork = fork_child(lambda: os._exit(0))
    os.waitpid(fork, 0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_signal_to_an_ended_process_does_nothing(child):
    process = Process(child(lambda: None))
    assert process.wait(SECONDS)
    process.signal(signal.SIGKILL)
    assert process.cause_of_death() == "exit code 0"
    process.reap()
    assert not os.path.exists(f"/proc/{process.pid}")


def test_reaping_and_closing_close_the_descriptor(child):
    before = set(leaks.descriptors())
    process = Process(child(lambda: None))
    assert set(leaks.descriptors()) > before
    process.reap()
    parent = Process(os.getppid())
    assert parent.wait(0) is False
    parent.close()
    assert set(leaks.descriptors()) == before


def test_a_grandchild_dies_with_its_parent(child):
    read, write = os.pipe()

    def be_the_parent():
        me = os.getpid()
        grandchild = os.fork()
        if grandchild == 0:
            os.setpgid(0, 0)  # an orphan that nobody reaps is none of the test's
            die_with(me)
            os.write(write, b"%d" % os.getpid())
        forever()

    parent = Process(child(be_the_parent))
    grandchild = Process(int(os.read(read, 20)))
    try:
        assert not grandchild.wait(0.05)
        parent.signal(signal.SIGKILL)
        assert parent.wait(SECONDS)
        assert grandchild.wait(SECONDS), "the grandchild outlived its parent"
    finally:
        grandchild.signal(signal.SIGKILL)
        grandchild.close()
        parent.reap()
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("parent_lives", [False, True])
def test_a_child_whose_parent_died_before_its_birth_ends_at_once_and_another_goes_on(child, parent_lives):
    me = os.getpid()

    def work():
        die_with(me if parent_lives else os.getpid())  # which is not the parent: so that one is gone already
        os._exit(7)

    check_end(Process(child(work)), f"exit code {7 if parent_lives else 1}")


def test_no_core_is_written(child):
    def work():
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        forbid_core_dumps()
        # Only the soft limit is ours to lower.
        os._exit(0 if resource.getrlimit(resource.RLIMIT_CORE) == (0, hard) else 1)

    check_end(Process(child(work)), "exit code 0")
