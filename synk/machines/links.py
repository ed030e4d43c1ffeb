"""The seam below the leaders of all machines: messages and arrays from one machine to another.

    LinkedLeaders -> Links.send ... Links.receive -> LinkedLeaders
    AllReduce -> Links.start_send, start_receive ... Links.done

`mpi_links.MpiLinks` is the one of MPI; in ``tests/support/machines`` machines are threads.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

WATCH_SECONDS = 0.01  # between looks at what else may end a wait
SPIN_SECONDS = 200e-6  # a message between machines takes dozens of microseconds
SHORT_NAP = 50e-6
LONG_NAP = 1e-2  # with which a wait takes less than 1 % of a core
NAP_SHARE = 0.02  # of what a wait has taken so far: it ends so much later than it could

Watch = Callable[[], Any]


class Links(Protocol):
    """The ways from this machine to all others.

    Attributes
    ----------
    machine, n_machines : int
    n_tags : int
        Transfers have tags below.
    """

    machine: int
    n_machines: int
    n_tags: int

    def send(self, machine: int, message: bytes) -> None:
        """Send a message; never wait. Messages from one machine to another arrive in order."""

    def unsent(self) -> bool:
        """Return whether a message has not left yet, for which the other machine must receive."""

    def push(self, seconds: float) -> bool:
        """Take so long at most to send on what has not left yet; return whether something still has not."""

    def receive(self) -> tuple[int, memoryview] | None:
        """Return the next message that has arrived and its sender, if there is one."""

    def start_send(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        """Start to send a contiguous array, which must stay as it is until that is `done`."""

    def start_receive(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        """Start to receive into an array of the same size as is sent under this tag."""

    def done(self, transfers: Sequence[Any]) -> bool:
        """Return whether all of these have ended."""

    def give_up(self, transfers: Sequence[Any]) -> None:
        """Forget transfers that may never end; their arrays may still be read and written."""

    def clear(self) -> None:
        """Throw away arrays that have arrived, which nobody waits for."""

    def rest(self, seconds: float) -> None:
        """Wait so long, or until something has arrived where that can be noticed."""

    def close(self) -> None:
        """Give up the ways; the other machines may have ended."""


def spin(ready: select.poll) -> bool:
    """Look for a moment whether something can be read; a sleeper would wake up later."""
    until = time.perf_counter() + SPIN_SECONDS
    while not ready.poll(0):
        if time.perf_counter() >= until:
            return False
        os.sched_yield()
    return True


def wait(links: Links, is_over: Callable[[], bool], watch: Watch) -> None:
    """Wait until something is over, by looking again and again: MPI wakes nobody up.

    Naps grow with the wait, so that long ones cost little.
    """
    began = watched = time.perf_counter()
    while not is_over():
        now = time.perf_counter()
        if now - watched >= WATCH_SECONDS:
            watched = now
            watch()
        waited = now - began
        links.rest(0 if waited < SPIN_SECONDS else min(max(SHORT_NAP, NAP_SHARE * waited), LONG_NAP))
