"""The fork server: its forks are the master's children, it keeps nothing alive, and ends with the master."""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from support.processes.scripts import start
from support.slow import slow
from synk.gpu.setup import fork_server
from synk.gpu.setup.fork_server import ForkServer
from synk.transport.processes.process import Process, die_with, fork_child
from synk.transport.processes.signals import ignore_signals
from synk.values.errors import SynkStateError


def live(end, parent):
    """Answer a question, by its value as Python sees it, until nobody asks any more."""
    try:
        die_with(parent)
        ignore_signals()
        while question := end.recv(1 << 16):
            end.send(json.dumps(eval(question.decode())).encode())
    finally:
        os._exit(7)


class Child:
    """A child that answers."""

    def __init__(self, server):
        self.end, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as made:
            made.enter_context(self.end)
            self.process = Process(server.fork(theirs))
            made.pop_all()

    def ask(self, question):
        self.end.send(question.encode())
        answer = self.end.recv(1 << 16)
        assert answer, f"{question}: {self.process.wait(5) and self.process.cause_of_death()}"
        return json.loads(answer)

    def close(self):
        self.end.close()
        self.process.wait(5)
        cause = self.process.cause_of_death()
        self.process.reap()
        return cause


def open_files(pid):
    """Return what the descriptors of a process are open on."""
    targets = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it may be closing one at this moment
            targets.append(os.readlink(path))
    return targets


@pytest.fixture
def server():
    made = ForkServer(live)
    yield made
    made.close()


@pytest.fixture
def child(server):
    made = Child(server)
    yield made
    if made.process.fileno() >= 0:
        made.close()


def test_forks_are_children_of_this_process_and_so_is_the_server(server):
    children = [Child(server) for _ in range(3)]
    for child in children:
        assert child.ask("[os.getpid(), os.getppid()]") == [child.process.pid, os.getpid()]
        assert child.ask("threading.active_count()") == 1
    assert Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text() == ""
    assert [child.close() for child in children] == ["exit code 7"] * 3


def test_a_death_is_seen_with_its_cause(child):
    child.process.signal(signal.SIGSEGV)
    assert child.process.wait(1)
    assert child.process.cause_of_death() == "signal SIGSEGV"
    child.close()


def test_this_process_adopts_forks_only(server, child):
    # What a child of ours leaves behind is not our affair: it would stay a zombie.
    orphan = "import os, time; os.fork() or (time.sleep(0.3), print(os.getppid(), flush=True))"
    told = subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True, timeout=30)
    assert int(told.stdout) != os.getpid()


def test_it_forks_with_what_there_was_when_it_was_forked():
    fork_server.mark = "before"
    server = ForkServer(live)
    fork_server.mark = "after"
    try:
        child = Child(server)
        assert child.ask("fork_server.mark") == "before"
        child.close()
    finally:
        server.close()
        del fork_server.mark


def test_it_lives_on_when_forks_die_and_its_forks_do_when_it_dies(server):
    first = Child(server)
    first.process.signal(signal.SIGKILL)
    first.close()
    second = Child(server)
    server.close()
    assert second.ask("os.getppid()") == os.getpid()
    second.close()


def test_forks_hold_one_socket_and_what_the_server_keeps(child):
    assert child.ask("1") == 1  # it is through with what it closes
    links = open_files(child.process.pid)
    assert sum(link.startswith("socket:") for link in links) == 1
    assert not [link for link in links if link.startswith(("pipe:", "anon_inode:[pidfd]"))]


def test_forks_run_no_handler_of_the_script():
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    server = ForkServer(live)
    signal.signal(signal.SIGUSR1, before)
    child = Child(server)
    assert child.ask("signal.getsignal(signal.SIGUSR1) not in (signal.default_int_handler, signal.SIG_DFL)")
    assert child.ask("list(signal.pthread_sigmask(signal.SIG_BLOCK, ()))") == []
    child.close()
    server.close()


def test_scripts_that_ignore_the_end_of_children_have_forks():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = ForkServer(live)
    signal.signal(signal.SIGCHLD, before)
    assert Child(server).close() == "exit code 7"
    server.close()


# --- what it keeps -----------------------------------------------------------------------------------


def test_it_keeps_no_descriptor_of_the_script(tmp_path):
    listening = socket.create_server(("127.0.0.1", 0))
    locked = (tmp_path / "locked").open("w")
    fcntl.flock(locked, fcntl.LOCK_EX)
    reader, writer = os.pipe()  # the last, which the server closes last
    server = ForkServer(live)
    address = listening.getsockname()
    listening.close()
    locked.close()
    os.close(writer)
    try:
        assert select.select([reader], [], [], 5)[0], "somebody holds the other end"
        assert os.read(reader, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with (tmp_path / "locked").open() as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert sum(target.startswith("socket:") for target in open_files(server.pid)) == 1
    finally:
        os.close(reader)
        server.close()


def test_numbers_of_closed_descriptors_stay_taken(tmp_path):
    with (tmp_path / "log").open("w") as log:
        server = ForkServer(live)
        child = Child(server)
        assert child.ask(f"os.readlink('/proc/self/fd/{log.fileno()}')") == "/dev/null"
        child.close()
        server.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, slow(signal.SIGHUP), slow(signal.SIGUSR1)])
def test_signals_to_the_whole_group_do_not_end_it(server, number):
    os.kill(server.pid, number)
    Child(server).close()
    assert server.trouble() == ""


def until(call, seconds=5):
    """Call until it raises."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        call()
        time.sleep(0.01)


# --- when it fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_server_that_died_says_so(server, number):
    os.kill(server.pid, number)
    with pytest.raises(SynkStateError, match=f"died of signal {number.name}"):
        until(lambda: Child(server).close())
    assert number.name in server.trouble()
    with pytest.raises(SynkStateError, match=number.name):  # and again
        Child(server)


def test_a_server_that_does_not_answer_is_given_up(server, monkeypatch):
    monkeypatch.setattr(fork_server, "SECONDS", 0.2)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(SynkStateError, match=r"did not answer within 0\.2 s"):
        Child(server)
    assert not Path(f"/proc/{server.pid}").exists()


def test_a_dismissed_server_says_so(server):
    server.close()
    server.close()
    with pytest.raises(SynkStateError, match="was dismissed"):
        Child(server)


@pytest.mark.parametrize("refused", [1, slow(2)])
def test_a_fork_that_the_system_refuses_is_an_error_and_the_next_one_works(monkeypatch, refused):
    refusing, forks = mmap.mmap(-1, 1), []  # the server shares the first

    def fork(child):
        if refusing[0]:
            forks.append(1)
        if refusing[0] and len(forks) == refused:
            raise BlockingIOError(errno.EAGAIN, "no process for you")
        return fork_child(child)

    monkeypatch.setattr("synk.gpu.setup.fork_server.fork_child", fork)
    server = ForkServer(live)
    refusing[0] = 1
    with pytest.raises(BlockingIOError, match="the fork server could not fork"):
        Child(server)
    refusing[0] = 0
    Child(server).close()
    server.close()
    refusing.close()


# --- when the master ends ----------------------------------------------------------------------------

MASTER = """
import os, socket, sys, threading, time, warnings
from synk.gpu.setup.fork_server import ForkServer
from synk.transport.processes.process import die_with

def live(end, parent):
    die_with(parent)
    time.sleep(60)

def make():
    global server, ends
    server = ForkServer(live)
    ends = socket.socketpair()
    child = server.fork(ends[1])
    ends[0].send(b"x")
    time.sleep(0.2)  # until it is told by the kernel
    print(server.pid, child, flush=True)

warnings.simplefilter("ignore")
if {thread!r} == "thread":
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
else:
    make()
if os.fork() == 0:  # somebody else holds what the master held
    time.sleep(3)
    os._exit(0)
{end}
"""

STOPPED = "os.kill(server.pid, 19); 1 / 0"


@pytest.mark.leaks("children", reason="a process of the script lives on, to hold its descriptors")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("thread", [slow("main"), "thread"])
@pytest.mark.parametrize(
    "end", ["time.sleep(60)", slow("os._exit(1)"), slow("sys.exit()"), "os.kill(server.pid, 19); 1 / 0"]
)
def test_it_ends_with_the_master_however_that_does(thread, end, warm_interpreter):
    if thread == "thread" and end == STOPPED:
        pytest.skip("a server that is stopped hears of the end from the kernel only")
    with start(MASTER.format(thread=thread, end=end)) as master:
        pids = list(map(int, master.stdout.readline().split()))
        assert len(pids) == 2
        lives = [Process(pid) for pid in pids]
        if "sleep" in end:
            master.kill()
        master.wait(20)
        try:
            assert all(life.wait(1) for life in lives)
        finally:
            for life in lives:
                life.signal(signal.SIGKILL)
                life.close()


def test_a_fork_whose_master_is_gone_does_not_begin():
    master = Process(fork_child(lambda: None))
    assert master.wait(5)
    (reader, writer), (theirs, end) = os.pipe(), socket.socketpair()
    with theirs, end, open(reader), open(writer, "w"):  # nothing has come from the master
        work = partial(fork_server._be_adopted, writer, end, [theirs, master], lambda _: os._exit(7))
        assert os.waitstatus_to_exitcode(os.waitpid(fork_child(work), 0)[1]) == 1
    master.reap()


def test_it_may_be_forked_by_a_thread_that_ends():
    made = []
    thread = threading.Thread(target=lambda: made.append(ForkServer(live)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    Child(made[0]).close()
    made[0].close()
