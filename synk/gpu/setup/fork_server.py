"""The fork server: it forks workers for a master that has used CUDA, and so must not fork itself.

The server is a fork of the master from before the master used CUDA. It has one thread, and only waits for
requests. A process that it forks becomes a child of the *master*, which can then supervise it like any other
worker: the server forks an intermediate process, which forks the child and exits. The kernel then gives the
orphaned child to its nearest ancestor that adopts orphans (a subreaper), which is the master.

    ForkServer (master) -> serve ... fork(end) -> fork -> fork, exit -> live(end), a child of the master

The server watches the master's pidfd and its socket to the master, and exits when the master ends.
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

from synk.run.device.devices import Live
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

ASK = b"f"  # the request; the descriptor of the new child's socket travels with it
ANSWER = struct.Struct("<q")  # the new child's pid, or a negative errno

PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

SECONDS = 30.0  # that the server may take to answer; it takes milliseconds unless it is stopped
DEATH_SECONDS = 1.0  # that a process may take to end after its socket has closed


class ForkServer:
    """The master's handle of its fork server; each child that the server forks runs ``live`` with a socket.

    Creating a ForkServer forks the server.
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
        """Run the server, in the forked process."""
        self._channel.close()
        serve(channel, self._owner, by_main_thread, lambda end: live(end, self._owner))

    @property
    def pid(self) -> int:
        """The pid of the server process."""
        return self._process.pid

    def trouble(self) -> str:
        """Return why the server cannot fork any more, or "" while it can."""
        if not self._lost and self._process.wait(0):
            self._lose(f"died of {self._process.cause_of_death()}")
        return self._lost

    def _lose(self, how: str) -> None:
        """Kill and reap the server, and note for later errors how it was lost."""
        self._lost = f"the fork server (pid {self.pid}), a copy of this process from before CUDA, {how}"
        self._process.signal(signal.SIGKILL)  # the server has nothing to clean up
        self._channel.close()
        if not self._process.reap():
            warn_of_survivors({"the fork server": self._process})

    def fork(self, end: socket.socket) -> int:
        """Let the server fork a new child of this process, and return the child's pid.

        The child calls ``live`` with the socket ``end`` as soon as the master sends something through its
        other end.

        Raises SynkStateError if the server is gone, OSError if the system refuses another process.
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
        """Wait for the server's answer; return ``b""`` if none comes in time or the server ends."""
        if not _is_readable(self._channel, self._process, SECONDS):
            return b""
        answer = self._channel.recv(ANSWER.size)
        if not answer:
            self._process.wait(DEATH_SECONDS)
        return answer

    def close(self) -> None:
        """End the server; the children that it has forked go on.

        In a fork of the master, this only closes the descriptors that the fork has inherited.
        """
        if os.getpid() != self._owner:
            self._channel.close()
            self._process.close()
        elif not self._lost:
            self._lose("was dismissed")


@contextmanager
def _adopting() -> Iterator[None]:
    """Within the ``with`` block, let this process adopt descendants whose parent ends (be a subreaper)."""
    libc, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"this process cannot adopt workers: {os.strerror(code)}")
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _is_readable(channel: socket.socket, life: Process, seconds: float | None = None) -> bool:
    """Wait until a socket is readable, or the process ``life`` at its other end has ended, or time is up.

    Return whether the socket is readable.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(life, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll(None if seconds is None else 1000 * seconds)]
    return channel.fileno() in ready


# --- the server itself ---------------------------------------------------------------------------------


def serve(
    channel: socket.socket, parent: int, by_main_thread: bool, live: Callable[[socket.socket], Any]
) -> NoReturn:
    """Be the fork server: fork a child for each request that arrives on ``channel``, until the master ends.

    Parameters
    ----------
    channel : socket
        The server's end of the socket to the master.
    parent : int
        The master's pid.
    by_main_thread : bool
        Whether the master's main thread has forked this process, so that the kernel may kill it with that
        thread.
    live : callable
        The main function of the children, called with the child's end of its socket.
    """
    try:
        if by_main_thread:  # the kernel kills this process when the thread that forked it ends
            die_with(parent)
        master = Process(parent)
        if os.getppid() != parent:  # the master died before: the pid may be another process's by now
            os._exit(1)
        _drop_script_state([channel.fileno(), master.fileno()])
        while (end := _next_request(channel, master)) is not None:
            with end:
                answer = _fork_twice(end, [channel, master], live)
            channel.send(ANSWER.pack(answer))
    except BaseException:  # the exit code tells the master
        os._exit(1)
    os._exit(0)


def _drop_script_state(kept: Iterable[int]) -> None:
    """Drop the signal handlers and the descriptors of the script, except the descriptors ``kept``.

    So the server keeps no file or socket of the script open; it keeps a copy of the script's memory.
    """
    ignore_signals()
    forbid_core_dumps()
    _close_other_descriptors({*kept, *_stream_descriptors()})
    gc.freeze()  # a collection would write to pages that are shared with the master, and so copy them


def _stream_descriptors() -> Iterator[int]:
    """Yield the descriptors above 2 of sys.stdout and sys.stderr: the children print there too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            if (descriptor := stream.fileno()) > 2:
                yield descriptor


def _close_other_descriptors(kept: Iterable[int]) -> None:
    """Replace all descriptors except those ``kept`` by /dev/null.

    Closing them would free their numbers. A file object of the script that still has such a number would
    then write into whatever file or socket gets the number next.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor in kept or descriptor == nowhere:
            continue
        with suppress(OSError):  # the descriptor with which listdir read the folder is closed by now
            os.fstat(descriptor)
            os.dup2(nowhere, descriptor, inheritable=descriptor <= 2)
    if nowhere > 2:
        os.close(nowhere)


def _next_request(channel: socket.socket, master: Process) -> socket.socket | None:
    """Wait for the next request; return the new child's end of its socket, or None if the master ended."""
    while _is_readable(channel, master):
        message, descriptors, _, _ = socket.recv_fds(channel, len(ASK), 1)
        if not message:
            return None
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return socket.socket(fileno=descriptors[0])
        channel.send(ANSWER.pack(-errno.EMFILE))  # out of descriptors, so the kernel has dropped it
    return None


def _fork_twice(end: socket.socket, others: list[Any], live: Callable[[socket.socket], Any]) -> int:
    """Fork a child by an intermediate process that exits; return the child's pid, or a negative errno."""
    try:
        reader, writer = os.pipe()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    try:
        between = fork_child(lambda: _be_intermediate(reader, writer, end, others, live))
        os.waitpid(between, 0)  # once it has ended, the master has adopted its child
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


def _be_intermediate(
    reader: int, writer: int, end: socket.socket, others: list[Any], live: Callable[[socket.socket], Any]
) -> None:
    """Fork the child, and write its pid, or a negative errno, to the pipe ``writer``."""
    os.close(reader)
    try:
        pid = fork_child(lambda: _be_adopted(writer, end, others, live))
    except OSError as error:
        pid = -(error.errno or errno.EAGAIN)
    os.write(writer, ANSWER.pack(pid))


def _be_adopted(
    writer: int, end: socket.socket, others: list[Any], live: Callable[[socket.socket], Any]
) -> None:
    """Be the child: wait for the master's first message, then run ``live``."""
    os.close(writer)
    # The master writes once it has adopted this process.
    if not _is_readable(end, others[1]):
        os._exit(1)
    for other in others:
        other.close()
    live(end)
