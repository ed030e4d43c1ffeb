"""Transfer arrays between machines over MPI, by nonblocking calls: a blocking wait in MPI burns a core."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from synk.transport.machines.mpi_library import load_mpi

PR_SET_TIMERSLACK = 29
SLACK_NANOSECONDS = (
    1000  # by default the kernel may prolong a nap by 50 microseconds, which doubles short ones
)


class MpiLinks:
    """`ArrayLinks` to the other processes of an MPI communicator."""

    def __init__(self, communicator: Any):
        self._mpi = load_mpi()
        self.machine, self.n_machines = communicator.rank, communicator.size
        self.n_tags = communicator.Get_attr(self._mpi.TAG_UB) + 1
        self._arrays = communicator.Dup()
        self._status = self._mpi.Status()
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NANOSECONDS, 0, 0, 0)  # of this thread
        self._unwanted: list[Any] = []  # requests that may never end; each keeps its array
        self._connect()

    def _connect(self) -> None:
        """Exchange an empty message with every other process, so that MPI connects to it now.

        Otherwise the first message to a process would leave only with a later call of MPI.
        """
        for distance in range(1, self.n_machines):
            to, sender = (self.machine + distance) % self.n_machines, self.machine - distance
            self._arrays.Sendrecv(b"", to, recvbuf=bytearray(), source=sender % self.n_machines)

    def start_send(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        return self._arrays.Isend([array.view("u1"), self._mpi.BYTE], machine, tag)

    def start_receive(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        return self._arrays.Irecv([array.view("u1"), self._mpi.BYTE], machine, tag)

    def done(self, transfers: Sequence[Any]) -> bool:
        return bool(self._mpi.Request.Testall(transfers))

    def give_up(self, transfers: Sequence[Any]) -> None:
        # MPI can cancel no send, and no receive whose data has begun to arrive.
        self._unwanted += transfers

    def clear(self, tag: int) -> None:
        while (found := self._arrays.Improbe(tag=tag, status=self._status)) is not None:
            data = bytearray(self._status.Get_count(self._mpi.BYTE))
            self._unwanted.append(found.Irecv(data))
        self._unwanted = [request for request in self._unwanted if not request.Test()]

    def nap(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)
        else:
            os.sched_yield()  # the sender may need this very core
