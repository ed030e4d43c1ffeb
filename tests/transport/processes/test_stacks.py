import ctypes
import os
import re
import signal
import time

import pytest

from synk.transport.processes.process import Process
from synk.transport.processes.stacks import READ_SECONDS, Stacks


def waiting_in_python(tell):
    tell()
    while True:
        time.sleep(0.01)


def waiting_in_native_code(tell):
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
    tell()
    while True:
        libc.pause()


def not_listening(tell):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    waiting_in_python(tell)


def ending(tell):
    tell()


class Worker:
    """A child that answers, and then does ``work``, which tells when it has come so far."""

    def __init__(self, work):
        self.stacks = Stacks()
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.stacks.answer()
            work(lambda: os.write(told, b"."))
            os._exit(0)
        self.process = Process(pid)
        os.close(told)
        assert os.read(ready, 1) == b"."
        os.close(ready)

    def stack(self):
        self.stacks.ask(self.process)
        return self.stacks.read()

    def close(self):
        self.process.signal(signal.SIGKILL)
        self.process.reap()
        self.stacks.close()


@pytest.fixture
def worker():
    workers = []

    def make(work):
        workers.append(Worker(work))
        return workers[-1]

    yield make
    for each in workers:
        each.close()


@pytest.mark.parametrize("work", [waiting_in_python, waiting_in_native_code])
def test_a_hanging_worker_tells_its_stack_each_time(worker, work):
    hanging = worker(work)
    for _ in range(3):
        told = hanging.stack()
        assert told.count("most recent call first") == 1  # this answer, not those before
        assert re.search(rf'File ".*test_stacks\.py", line \d+ in {work.__name__}', told)
    assert not hanging.process.wait(0)  # asking does not kill it


def test_a_stopped_worker_is_not_waited_for(worker):
    stopped = worker(waiting_in_python)
    stopped.process.signal(signal.SIGSTOP)
    while not stopped.process.stopped():
        time.sleep(0.01)
    began = time.monotonic()
    assert stopped.stack() == ""
    assert time.monotonic() - began < READ_SECONDS
    stopped.process.signal(signal.SIGCONT)
    while stopped.process.stopped():
        time.sleep(0.01)
    assert "waiting_in_python" in stopped.stack()


def test_an_ended_worker_is_not_waited_for(worker):
    ended = worker(ending)
    assert ended.process.wait(5)
    began = time.monotonic()
    assert ended.stack() == ""
    assert time.monotonic() - began < READ_SECONDS


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_waited_for_shortly(worker):
    deaf = worker(not_listening)
    began = time.monotonic()
    assert deaf.stack() == ""
    assert READ_SECONDS <= time.monotonic() - began < 5 * READ_SECONDS


def test_all_are_asked_before_any_is_waited_for(worker):
    deaf = [worker(not_listening) for _ in range(4)]
    began = time.monotonic()
    for each in deaf:
        each.stacks.ask(each.process)
    assert [each.stacks.read() for each in deaf] == [""] * 4
    assert time.monotonic() - began < 3 * READ_SECONDS
