"""Links between machines over MPI, by calls that return at once: a wait inside of MPI burns a core.

Messages are received as they come, whoever sends them. Arrays have a communicator of their own.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from synk.machines.mpi_library import load_mpi

PR_SET_TIMERSLACK = 29
SLACK_NANOSECONDS = 1000  # short naps would take twice as long as they are told to
PIECE_BYTES = 1 << 30  # MPI counts in C's int
LAST, MORE_FOLLOW = 0, 1  # tags of the pieces of a message


class _Piece(NamedTuple):
    """A piece of a message on its way to here."""

    request: Any
    data: bytearray
    tag: int


class MpiLinks:
    """The ways to the other processes of an MPI communicator: `Links`."""

    def __init__(self, communicator: Any):
        self._mpi = load_mpi()
        self.machine, self.n_machines = communicator.rank, communicator.size
        self.n_tags = communicator.Get_attr(self._mpi.TAG_UB) + 1
        self._messages, self._arrays = communicator.Dup(), communicator.Dup()
        self._status = self._mpi.Status()
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NANOSECONDS, 0, 0, 0)  # of this thread
        self._sends: list[Any] = []  # requests, each of which keeps what it sends
        self._coming: defaultdict[int, deque[_Piece]] = defaultdict(deque)  # by sender
        self._come: defaultdict[int, bytearray] = defaultdict(bytearray)  # by sender, of a message in pieces
        self._unwanted: list[Any] = []  # requests that may never end
        self._connect()

    def _connect(self) -> None:
        """Meet every other process: the first message to each would leave with a later call of MPI only."""
        for distance in range(1, self.n_machines):
            to, sender = (self.machine + distance) % self.n_machines, self.machine - distance
            self._arrays.Sendrecv(b"", to, recvbuf=bytearray(), source=sender % self.n_machines)

    def send(self, machine: int, message: bytes) -> None:
        for start in range(0, len(message), PIECE_BYTES):
            piece = memoryview(message)[start : start + PIECE_BYTES]
            tag = LAST if start + PIECE_BYTES >= len(message) else MORE_FOLLOW
            self._sends.append(self._messages.Isend([piece, self._mpi.BYTE], machine, tag))
        self.unsent()

    def unsent(self) -> bool:
        self._sends = [request for request in self._sends if not request.Test()]
        return bool(self._sends)

    def push(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while left := bool(self.unsent() or self._unwanted):
            if time.monotonic() >= deadline:
                break
            self._unwanted = [request for request in self._unwanted if not request.Test()]
            self.rest(0)
        return left

    def receive(self) -> tuple[int, memoryview] | None:
        self._match()
        for sender, pieces in self._coming.items():
            while pieces and pieces[0].request.Test():
                piece = pieces.popleft()
                if piece.tag == LAST and sender not in self._come:
                    return sender, memoryview(piece.data)
                self._come[sender] += piece.data
                if piece.tag == LAST:
                    return sender, memoryview(self._come.pop(sender))
        return None

    def _match(self) -> None:
        """Start to receive the next piece that a machine has sent, if there is one."""
        found, status = self._messages.Improbe(status=self._status), self._status
        if found is not None:
            data = bytearray(status.Get_count(self._mpi.BYTE))
            self._coming[status.Get_source()].append(_Piece(found.Irecv(data), data, status.Get_tag()))

    def start_send(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        return self._arrays.Isend([array.view("u1"), self._mpi.BYTE], machine, tag)

    def start_receive(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        return self._arrays.Irecv([array.view("u1"), self._mpi.BYTE], machine, tag)

    def done(self, transfers: Sequence[Any]) -> bool:
        return bool(self._mpi.Request.Testall(transfers))

    def give_up(self, transfers: Sequence[Any]) -> None:
        # What is sent cannot be called back, and what has begun to arrive goes on; requests keep arrays.
        self._unwanted += transfers

    def clear(self) -> None:
        while (found := self._arrays.Improbe(status=self._status)) is not None:
            data = bytearray(self._status.Get_count(self._mpi.BYTE))
            self._unwanted.append(found.Irecv(data))
        self._unwanted = [request for request in self._unwanted if not request.Test()]

    def rest(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)
        else:
            os.sched_yield()  # the sender may need this very core

    def close(self) -> None:
        """Forget all requests; MPI itself ends with the process."""
