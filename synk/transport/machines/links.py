"""The seams below the leaders of all machines: messages from one to another, and reductions of large arrays.

    LinkedLeaders -> Links.send ... Links.receive -> LinkedLeaders
    LinkedLeaders -> Reduction.run, AllReduce -> ArrayLinks.start_send, start_receive ... ArrayLinks.done

Messages go over sockets (`socket_links.SocketLinks`), which wake up who waits; arrays over MPI
(`mpi_links.MpiLinks`), which does not. In ``tests/support/machines`` machines are threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from synk.transport.memory.shm import Segment

WATCH_SECONDS = 0.01  # between looks at what else may end a wait
SPIN_SECONDS = 200e-6  # an array takes dozens of microseconds at least
SHORT_NAP = 50e-6
LONG_NAP = 1e-2  # with which a wait takes less than 1 % of a core
NAP_SHARE = 0.02  # of what a wait has taken so far: it ends so much later than it could

Watch = Callable[[], Any]


class Links(Protocol):
    """The ways of messages from this machine to all others.

    Attributes
    ----------
    machine, n_machines : int
    """

    machine: int
    n_machines: int

    def send(self, machine: int, message: bytes) -> None:
        """Send a message; never wait. Messages from one machine to another arrive in order."""

    def unsent(self) -> bool:
        """Return whether a message has not left yet, for which the other machine must receive."""

    def push(self, seconds: float) -> bool:
        """Take so long at most to send on what has not left yet; return whether something still has not."""

    def receive(self, take: Callable[[int, memoryview], Any]) -> None:
        """Call ``take(sender, message)`` for all messages that have arrived by the last `rest`.

        Where a signal handler raises meanwhile, the next call may bring the same message again.
        """

    def rest(self, seconds: float) -> bool:
        """Wait for messages to arrive or leave, so long at most; return whether some may have."""

    def cut(self) -> list[str]:
        """Return the addresses of machines from which nothing can come any more."""

    def close(self) -> None:
        """Give up the ways; the other machines may have ended."""


class ArrayLinks(Protocol):
    """The ways of arrays from this machine to all others.

    Attributes
    ----------
    machine, n_machines : int
    n_tags : int
        Transfers have tags below.
    """

    machine: int
    n_machines: int
    n_tags: int

    def start_send(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        """Start to send a contiguous array, which must stay as it is until that is `done`."""

    def start_receive(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        """Start to receive into an array of the same size as is sent under this tag."""

    def done(self, transfers: Sequence[Any]) -> bool:
        """Return whether all of these have ended."""

    def give_up(self, transfers: Sequence[Any]) -> None:
        """Forget transfers that may never end; their arrays may still be read and written."""

    def clear(self, tag: int) -> None:
        """Throw away arrays that have arrived under this tag, which nobody waits for."""

    def nap(self, seconds: float) -> None:
        """Wait so long, or until something has arrived where that can be noticed."""


class Reduction(Protocol):
    """Combines large arrays of all machines: `AllReduce`, or `AgentReduce`, which asks another process."""

    def run(self, array: NDArray[Any], op: str, number: int, watch: Watch) -> None:
        """Combine flat contiguous arrays; ``number`` is one that all machines have, and another each time."""

    def give_up(self, number: int) -> None:
        """Throw away what the others have sent, or send yet, for a reduction that this machine leaves out."""

    def share(self, number: int, segment: Segment) -> None:
        """See `Leaders`."""

    def unshare(self, number: int) -> None:
        """See `Leaders`."""

    def close(self) -> None:
        """Let go of what combines."""


def wait(links: ArrayLinks, transfers: Sequence[Any], watch: Watch) -> None:
    """Wait until all transfers have ended, by looking again and again: MPI wakes nobody up.

    Naps grow with the wait, so that long ones cost little.
    """
    began = watched = time.perf_counter()
    while not links.done(transfers):
        now = time.perf_counter()
        if now - watched >= WATCH_SECONDS:
            watched = now
            watch()
        waited = now - began
        links.nap(0 if waited < SPIN_SECONDS else min(max(SHORT_NAP, NAP_SHARE * waited), LONG_NAP))
