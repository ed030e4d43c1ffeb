"""A process that forks workers for a master which cannot: one that has used CUDA.

The fork server is a fork of the master from before that, with one thread, and does nothing but wait. What it
forks becomes a child of the *master*, so that this supervises it as any other: the server forks a process
that forks the child and ends, and orphans go to the nearest ancestor that adopts them.

    ForkServer (master) -> serve ... fork(end) -> fork -> fork, exit -> live(end), a child of the master

The server ends with the master, however that dies: it watches the master's pidfd and the socket.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

from synk.transport.processes.process import (
    Process,
    die_with,
    forbid_core_dumps,
    fork_child,
    warn_of_survivors,
    watched,
)
from synk.transport.processes.signals import hold_signals, ignore_signals
from synk.values.errors import SynkStateError

ASK = b"f"  # with a descriptor: the socket that the child is to have
ANSWER = struct.Struct("<q")  # a pid, or an error number below zero

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

SECONDS = 30.0  # for the server to answer: it takes milliseconds, unless it is stopped
DEATH_SECONDS = 1.0  # between a closed socket and the end of its process

# live(end, pid of the master)
Live = Callable[[socket.socket, int], NoReturn]


class ForkServer:
    """The master's end of its fork server, forked here; its forks do ``live``, each with a socket."""

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

        Raises SynkStateError if the server is gone, OSError if the system refuses it a process.
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
        if not _brings(self._channel, self._process, SECONDS):
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


def _brings(channel: socket.socket, life: Process, seconds: float | None = None) -> bool:
    """Wait until a socket brings something, or the process at its other end is gone; tell whether it does."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(life, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll(None if seconds is None else 1000 * seconds)]
    return channel.fileno() in ready


# --- the server itself ---------------------------------------------------------------------------------


def serve(
    channel: socket.socket, parent: int, by_main_thread: bool, live: Callable[[socket.socket], Any]
) -> NoReturn:
    """Be the server until the end."""
    try:
        if by_main_thread:  # the kernel's word for it is of the thread
            die_with(parent)
        master = Process(parent)
        if os.getppid() != parent:  # it died before: the pidfd may be somebody else's
            os._exit(1)
        _be_a_server([channel.fileno(), master.fileno()])
        while (end := _asked(channel, master)) is not None:
            with end:
                answer = _fork_twice(end, [channel, master], live)
            channel.send(ANSWER.pack(answer))
    except BaseException:  # there is nobody to tell but the master, which sees the exit code
        os._exit(1)
    os._exit(0)


def _be_a_server(kept: Iterable[int]) -> None:
    """Let go of the script's signals and descriptors, but for those ``kept``.

    A server keeps nothing of it alive but its memory.
    """
    ignore_signals()
    forbid_core_dumps()
    _close_the_others({*kept, *_of_streams()})
    gc.freeze()  # a collection would copy pages that are shared until then


def _of_streams() -> Iterator[int]:
    """Yield where Python prints to, if that is a file of its own: forks print there too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            if (descriptor := stream.fileno()) > 2:
                yield descriptor


def _close_the_others(kept: Iterable[int]) -> None:
    """Point all other descriptors nowhere.

    Their numbers stay taken: an object of the script that thinks that one is its file would write to whatever
    got it next.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor in kept or descriptor == nowhere:
            continue
        with suppress(OSError):  # the one that lists is closed by now
            os.fstat(descriptor)
            os.dup2(nowhere, descriptor, inheritable=descriptor <= 2)
    if nowhere > 2:
        os.close(nowhere)


def _asked(channel: socket.socket, master: Process) -> socket.socket | None:
    """Wait for the next child that is wanted; return its end of a socket, None when the master is gone."""
    while _brings(channel, master):
        message, descriptors, _, _ = socket.recv_fds(channel, len(ASK), 1)
        if not message:
            return None
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return socket.socket(fileno=descriptors[0])
        channel.send(ANSWER.pack(-errno.EMFILE))  # the kernel has dropped it
    return None


def _fork_twice(end: socket.socket, others: list[Any], live: Callable[[socket.socket], Any]) -> int:
    """Return the pid of a process that has lost its parent, or an error number below zero."""
    try:
        reader, writer = os.pipe()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    try:
        between = fork_child(lambda: _be_between(reader, writer, end, others, live))
        os.waitpid(between, 0)  # when it has ended, its child has the parent it keeps
        os.close(writer)
        writer = -1
        said = os.read(reader, ANSWER.size)
        return int(ANSWER.unpack(said)[0]) if said else -errno.ECHILD
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    finally:
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)


def _be_between(
    reader: int, writer: int, end: socket.socket, others: list[Any], live: Callable[[socket.socket], Any]
) -> None:
    """Fork the child, and tell its pid."""
    os.close(reader)
    try:
        pid = fork_child(lambda: _be_adopted(writer, end, others, live))
    except OSError as error:
        pid = -(error.errno or errno.EAGAIN)
    os.write(writer, ANSWER.pack(pid))


def _be_adopted(
    writer: int, end: socket.socket, others: list[Any], live: Callable[[socket.socket], Any]
) -> None:
    """Be the child once it is the master's."""
    os.close(writer)
    if not _brings(end, others[1]):  # what the master writes once it is the parent
        os._exit(1)
    for other in others:
        other.close()
    live(end)
