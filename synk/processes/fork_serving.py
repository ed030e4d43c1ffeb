"""The fork server itself: it waits, and forks children for its master.

serve -> ask: fork -> fork (the child) and exit -> the pid, once the child is the master's
"""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

from synk.processes.process import Process, die_with, forbid_core_dumps, fork_child
from synk.processes.signals import ignore_signals

ASK = b"f"  # with a descriptor: the socket that the child is to have
ANSWER = struct.Struct("<q")  # a pid, or an error number below zero


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
    """Let go of signals and descriptors of the script: a server keeps nothing of it alive but its memory.

    Parameters
    ----------
    kept : iterable of int
        Descriptors that it needs.
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
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(master, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if channel.fileno() not in ready:
            return None
        message, descriptors, _, _ = socket.recv_fds(channel, len(ASK), 1)
        if not message:
            return None
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return socket.socket(fileno=descriptors[0])
        channel.send(ANSWER.pack(-errno.EMFILE))  # the kernel has dropped it


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
    _await_adoption(end, others[1])
    for other in others:
        other.close()
    live(end)


def _await_adoption(end: socket.socket, master: Process) -> None:
    """Return when the master has written to ``end``: it is the parent then."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(master, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll()]
    if end.fileno() not in ready:
        os._exit(1)
