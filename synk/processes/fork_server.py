"""A process that forks workers for a master which cannot: one that has used CUDA.

The fork server is a fork of the master from before that, with one thread, and does nothing but wait. What it
forks becomes a child of the *master*, so that this supervises it as any other: the server forks a process
that forks the child and ends, and orphans go to the nearest ancestor that adopts them.

    ForkServer (master) -> waits ... fork(end) -> fork -> fork, exit -> live(end), a child of the master

The server ends with the master, however that dies: it watches the master's pidfd and the socket.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from synk.processes.fork_serving import ANSWER, ASK, serve
from synk.processes.process import fork_child, warn_of_survivors, watched
from synk.processes.signals import hold_signals
from synk.values.errors import SynkStateError

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

SECONDS = 30.0  # for the server to answer: it takes milliseconds, unless it is stopped
DEATH_SECONDS = 1.0  # between a closed socket and the end of its process

# live(end, pid of the master)
Live = Callable[[socket.socket, int], NoReturn]


class ForkServer:
    """The master's end of its fork server, which is forked here.

    Parameters
    ----------
    live : callable
        What its forks do, each with a socket of its own.

    Raises
    ------
    OSError
        If the system refuses a process.
    """

    def __init__(self, live: Live):
        self._owner = os.getpid()
        by_main_thread = threading.current_thread() is threading.main_thread()
        self._lost = ""
        with hold_signals(), ExitStack() as made:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel, theirs = map(made.enter_context, pair)
            self._process = watched(fork_child(lambda: self._serve(theirs, by_main_thread, live)))
            made.pop_all()
            theirs.close()

    def _serve(self, channel: socket.socket, by_main_thread: bool, live: Live) -> NoReturn:
        self._channel.close()
        serve(channel, self._owner, by_main_thread, lambda end: live(end, self._owner))

    @property
    def pid(self) -> int:
        """The server's."""
        return self._process.pid

    def trouble(self) -> str:
        """Return why there will be no more forks, or "" while all is well."""
        if not self._lost and self._process.wait(0):
            self._lose(f"died of {self._process.cause_of_death()}")
        return self._lost

    def _lose(self, how: str) -> None:
        self._lost = f"the fork server (pid {self.pid}), a copy of this process from before CUDA, {how}"
        self._process.signal(signal.SIGKILL)  # it has nothing to tidy up
        self._channel.close()
        if not self._process.reap():
            warn_of_survivors({"the fork server": self._process})

    def fork(self, end: socket.socket) -> int:
        """Return the pid of a new child of this process, which lives with ``end`` once that brings something.

        Raises
        ------
        SynkStateError
            If the server is gone.
        OSError
            If the system refuses it a process.
        """
        if self.trouble():
            raise SynkStateError(self._lost)
        with _adopting():
            try:
                socket.send_fds(self._channel, [ASK], [end.fileno()])
                answer = self._answer()
            except ConnectionError:
                self._process.wait(DEATH_SECONDS)
                answer = b""
        if not answer:
            if not self.trouble():
                self._lose(f"did not answer within {SECONDS:g} s")
            raise SynkStateError(self._lost)
        (pid,) = ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, f"the fork server could not fork: {os.strerror(-pid)}")
        return int(pid)

    def _answer(self) -> bytes:
        """Return the answer of the server, nothing if there comes none."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._process, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(1000 * SECONDS)]
        if self._channel.fileno() not in ready:
            return b""
        answer = self._channel.recv(ANSWER.size)
        if not answer:
            self._process.wait(DEATH_SECONDS)
        return answer

    def close(self) -> None:
        """End the server, whose forks live on; a fork of the master only closes what it holds of it."""
        if os.getpid() != self._owner:
            self._channel.close()
            self._process.close()
        elif not self._lost:
            self._lose("was dismissed")


@contextmanager
def _adopting() -> Iterator[None]:
    """Make this process the parent of descendants that lose theirs in the body."""
    libc, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"this process cannot adopt workers: {os.strerror(code)}")
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
