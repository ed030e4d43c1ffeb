"""Interfaces for the leaders of all machines: to send messages, to transfer arrays, to reduce large arrays.

    LinkedLeaders -> Links.send ... Links.receive -> LinkedLeaders
    LinkedLeaders -> Reduction.run, MachineAllReduce -> ArrayLinks.start_send, start_receive ... done

Messages go over sockets (`socket_links.SocketLinks`), on which a process sleeps until data arrives; arrays go
over MPI (`mpi_links.MpiLinks`), which must be polled. In ``tests/support/machines`` machines are threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from synk.transport.memory.shm import Segment

WATCH_SECONDS = 0.01  # between two calls of `watch` during a wait
SPIN_SECONDS = 200e-6  # a wait polls without naps for so long; an array takes dozens of microseconds at least
SHORT_NAP = 50e-6  # seconds
LONG_NAP = 1e-2  # seconds; with such naps a wait takes less than 1 % of a core
NAP_SHARE = 0.02  # length of a nap as a fraction of the wait so far, by which the wait may end too late

Watch = Callable[[], Any]  # called again and again during a wait; raises to end it


class Links(Protocol):
    """Sends messages from this machine to all others, and receives theirs.

    Attributes
    ----------
    machine, n_machines : int
    """

    machine: int
    n_machines: int

    def send(self, machine: int, message: bytes) -> None:
        """Send a message without waiting. Messages from one machine to another arrive in order."""

    def unsent(self) -> bool:
        """Return whether a message waits to leave this machine until the other machine receives."""

    def push(self, seconds: float) -> bool:
        """Send waiting messages for at most ``seconds``; return whether some still wait."""

    def receive(self, take: Callable[[int, memoryview], Any]) -> None:
        """Call ``take(sender, message)`` for all messages that the calls of `rest` so far have received.

        If a signal handler raises meanwhile, the next call may take the same message again.
        """

    def rest(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for messages to arrive or leave; return whether some may have."""

    def cut(self) -> list[str]:
        """Return the addresses of the machines that cannot be reached any more."""

    def close(self) -> None:
        """Close the connections; the other machines may have ended."""


class ArrayLinks(Protocol):
    """Transfers arrays from this machine to all others, and back.

    Attributes
    ----------
    machine, n_machines : int
    n_tags : int
        Tags of transfers are from 0 to ``n_tags - 1``.
    """

    machine: int
    n_machines: int
    n_tags: int

    def start_send(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        """Start to send a contiguous array, which must not change before the returned transfer is `done`."""

    def start_receive(self, array: NDArray[Any], machine: int, tag: int) -> Any:
        """Start to receive into an array, as large as the array that is sent under this tag."""

    def done(self, transfers: Sequence[Any]) -> bool:
        """Return whether all these transfers have ended."""

    def give_up(self, transfers: Sequence[Any]) -> None:
        """Stop waiting for transfers, which may never end; their arrays may still be read and written."""

    def clear(self, tag: int) -> None:
        """Throw away the arrays that have arrived under this tag, and for which no receive was started."""

    def nap(self, seconds: float) -> None:
        """Sleep for ``seconds``; return earlier if arriving data can be noticed."""


class Reduction(Protocol):
    """Combines large arrays of all machines.

    It is a `MachineAllReduce`, which does so itself, or an `AgentReduce`, which asks another process.
    """

    def run(self, array: NDArray[Any], op: str, number: int, watch: Watch) -> None:
        """Combine the flat contiguous arrays of all machines by the operation ``op``, in place.

        All machines pass the same ``number`` for the same reduction, and another one for each reduction.
        """

    def give_up(self, number: int) -> None:
        """Leave out a reduction: throw away the data that other machines send for it."""

    def share(self, number: int, segment: Segment) -> None:
        """See `Leaders`."""

    def unshare(self, number: int) -> None:
        """See `Leaders`."""

    def close(self) -> None:
        """Release the resources of the reduction."""


def wait(links: ArrayLinks, transfers: Sequence[Any], watch: Watch) -> None:
    """Wait until all transfers have ended, by polling: MPI offers no way to sleep until then.

    The naps between two polls grow with the wait, so that long waits take little of a core.
    """
    began = watched = time.perf_counter()
    while not links.done(transfers):
        now = time.perf_counter()
        if now - watched >= WATCH_SECONDS:
            watched = now
            watch()
        waited = now - began
        links.nap(0 if waited < SPIN_SECONDS else min(max(SHORT_NAP, NAP_SHARE * waited), LONG_NAP))
