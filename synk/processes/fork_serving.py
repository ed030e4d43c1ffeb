"""What the fork server does: wait, and fork children for its master.

serve -> ask: fork -> fork (the child) and exit -> the pid, once the child is the master's
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from synk.processes.settle import be_a_server
from synk.processes.watch import Process, die_with, fork_child

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
        be_a_server([channel.fileno(), master.fileno()])
        while (end := _asked(channel, master)) is not None:
            with end:
                answer = _fork_twice(end, [channel, master], live)
            channel.send(ANSWER.pack(answer))
    except BaseException:  # there is nobody to tell but the master, which sees the exit code
        os._exit(1)
    os._exit(0)


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
