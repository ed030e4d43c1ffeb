import contextlib
import faulthandler
import os
import resource
import signal
import time

import leaks
import pytest

from synk.processes.watch import Process, die_with, forbid_core_dumps

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


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
def test_the_signal_that_killed_is_named(child, number):
    def work():
        forbid_core_dumps()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.Signals[number])

    process = Process(child(work))
    assert ended(process) == f"signal {number}"
    process.reap()


def test_a_signal_without_a_name_is_told_too(child):
    process = Process(child(lambda: os.kill(os.getpid(), signal.SIGRTMIN + 5)))
    try:
        assert ended(process) == f"signal {signal.SIGRTMIN + 5}"
    finally:
        process.reap()


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_told(child, code):
    process = Process(child(lambda: os._exit(code)))
    assert ended(process) == f"exit code {code}"
    process.reap()


def test_asking_does_not_reap(child):
    process = Process(child(lambda: os._exit(3)))
    for _ in range(3):
        assert ended(process) == "exit code 3"
    process.reap()
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


@pytest.mark.parametrize("stopped", [False, True])
def test_who_lives_or_is_only_stopped_has_not_ended(child, stopped):
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
    assert ended(process) == "an unknown cause"
    process.signal(signal.SIGKILL)
    process.reap()


def test_a_signal_to_who_has_ended_does_nothing(child):
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


def test_who_comes_too_late_to_die_with_its_parent_leaves_at_once(child):
    def work():
        die_with(os.getpid())  # which is not the parent: so that one is gone already
        os._exit(7)

    process = Process(child(work))
    assert ended(process) == "exit code 1"
    process.reap()


def test_who_has_its_parent_still_lives(child):
    me = os.getpid()

    def work():
        die_with(me)
        os._exit(7)

    process = Process(child(work))
    assert ended(process) == "exit code 7"
    process.reap()


def test_no_core_is_written(child):
    def work():
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        forbid_core_dumps()
        # Only the soft limit is ours to lower.
        os._exit(0 if resource.getrlimit(resource.RLIMIT_CORE) == (0, hard) else 1)

    process = Process(child(work))
    assert ended(process) == "exit code 0"
    process.reap()
