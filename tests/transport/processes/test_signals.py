"""Workers ignore signals; programs that they start, and processes that they fork, do not."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

from synk.transport.processes.process import Process, fork_child
from synk.transport.processes.signals import IGNORED, ignore_signals

SECONDS = 10.0  # for what should take milliseconds

# Of a program just started: which signals are blocked, and which ignored, as bits.
TOLD = ["sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status"]


def own(number, frame):
    os.write(2, b"a handler of the script ran\n")
    os._exit(99)


@pytest.fixture
def script_s():
    """Handlers of the script: also of signals that workers would not ignore of themselves."""
    numbers = [signal.SIGUSR1, signal.SIGTERM, signal.SIGXCPU, signal.SIGRTMIN + 1]
    before = {number: signal.signal(number, own) for number in numbers}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def exit_code(work):
    """Return how a worker that ignores signals and then does ``work()`` ends."""

    def live():
        os.kill(os.getpid(), signal.SIGUSR1)  # one that comes before
        ignore_signals()
        work()
        os._exit(0)

    process = Process(fork_child(live))
    assert process.wait(SECONDS)
    cause = process.cause_of_death()
    process.reap()
    return cause


def test_what_ends_a_job_and_what_the_script_handles_does_nothing(script_s):
    def work():
        for number in (*IGNORED, *script_s):
            signal.raise_signal(number)
            time.sleep(0)  # a handler in Python would run here

    assert exit_code(work) == "exit code 0"


def test_calls_in_native_code_are_not_cut_short():
    def work():
        reader, writer = os.pipe()
        me = os.getpid()
        if os.fork() == 0:
            time.sleep(0.05)
            os.kill(me, signal.SIGTERM)
            time.sleep(0.05)
            os.write(writer, b"x")
            os._exit(0)
        there = ctypes.create_string_buffer(1)
        assert ctypes.CDLL(None).read(reader, there, 1) == 1

    assert exit_code(work) == "exit code 0"


def test_programs_that_a_worker_starts_take_signals_as_they_should(script_s):
    def bits():
        return subprocess.run(TOLD, stdout=subprocess.PIPE, text=True, check=True).stdout

    before = bits()

    def work():
        assert bits() == before, bits()

    assert exit_code(work) == "exit code 0"


def test_what_the_script_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def work():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

        assert exit_code(work) == "exit code 0"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_end_of_children_is_told_though_the_script_ignores_it():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:

        def work():
            assert subprocess.run([sys.executable, "-c", "exit(3)"]).returncode == 3

        pid = fork_child(lambda: (ignore_signals(), work(), os._exit(0)))
        signal.signal(signal.SIGCHLD, before)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_processes_that_a_worker_forks_end_of_signals(number):
    def work():
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(0.01)
        time.sleep(0.05)
        os.kill(child, number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number

    assert exit_code(work) == "exit code 0"
