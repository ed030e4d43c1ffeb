"""Collectives of the leaders of all machines: which message goes when to which machine.

The messages themselves travel over any `Links`, and a `Reduction` combines large arrays.

H machines gather in log2 H rounds. In round r, each machine sends its own payload and those of the next
2^r - 1 machines to the machine that is 2^r before it [1]_. A machine sends no more bytes than it receives.

    all_gather -> pack -> Links of one machine ... of another -> unpack -> all_gather

A meeting is one collective of the leaders. A message has the numbers of its command, meeting and round: so
messages left over from an aborted command are thrown away, and those that come early are kept.

.. [1] Bruck et al. (1997), doi:10.1109/71.642949.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from synk.transport.commands.interfaces import Aborted
from synk.transport.machines.links import WATCH_SECONDS, Links, Reduction, Watch
from synk.transport.memory.shm import Segment
from synk.values.errors import LinkLost

HEAD = struct.Struct("<qqqq")  # command, meeting, round or FAILED, number of payloads
LENGTH = struct.Struct("<q")
PUSH_SECONDS = 0.05  # to send on earlier messages, behind which the message of a failure waits
MEETINGS = 1000  # of one command, after which the numbers of its all-reduces repeat
FAILED = -1  # instead of a round: the sender will not come to this meeting of the command


class Place(NamedTuple):
    """The command, meeting and round to which a message belongs."""

    command: int
    meeting: int
    round: int


class LinkedLeaders:
    """The `Leaders` of a machine that has `Links` to all other machines."""

    def __init__(self, links: Links, reduction: Reduction):
        self.machine, self.n_machines = links.machine, links.n_machines
        self._links, self._reduction = links, reduction
        self._command = self._n_meetings = 0  # the command, and how many of its meetings are over
        self._early: dict[
            tuple[int, Place], list[memoryview]
        ] = {}  # payloads that came early, by sender and place
        self._failures: dict[int, Place] = {}  # the last failure of each machine

    def begin(self, command: int) -> None:
        self._command, self._n_meetings = command, 0
        self._early = {key: payloads for key, payloads in self._early.items() if key[1].command >= command}
        self._take_in(0)

    def fail(self) -> None:
        message = pack(Place(self._command, self._n_meetings + 1, FAILED), ())
        for distance in range(1, self.n_machines):
            self._links.send((self.machine + distance) % self.n_machines, message)
        self._reduction.give_up(self._number())
        self._links.push(PUSH_SECONDS)

    def all_gather(self, payload: Any, watch: Watch) -> list[bytes]:
        n = self.n_machines
        payloads = [memoryview(payload).cast("B")]  # of this machine, the next, and so on
        round = 0
        while len(payloads) < n:
            distance = len(payloads)
            place = Place(self._command, self._n_meetings + 1, round)
            sent = payloads[: n - distance]
            self._links.send((self.machine - distance) % n, pack(place, sent))
            payloads += self._receive((self.machine + distance) % n, place, watch)
            round += 1
        self._wait(lambda: not self._links.unsent(), watch)
        self._n_meetings += 1
        first = n - self.machine  # where machine 0 is
        return [bytes(payloads[(first + machine) % n]) for machine in range(n)]

    def all_reduce(self, array: NDArray[Any], op: str, watch: Watch) -> None:
        def look() -> None:
            self._take_in(0)
            self._look_for_failures()
            watch()
            self._look_for_cuts()

        self._reduction.run(array, op, self._number(), look)
        self._n_meetings += 1

    def _number(self) -> int:
        """Return the number that the next meeting has if it is a reduction."""
        return self._command * MEETINGS + self._n_meetings % MEETINGS

    def share(self, number: int, segment: Segment) -> None:
        self._reduction.share(number, segment)

    def unshare(self, number: int) -> None:
        self._reduction.unshare(number)

    def push(self, seconds: float) -> bool:
        return self._links.push(seconds)

    def close(self) -> None:
        self._links.close()
        self._reduction.close()

    def _receive(self, sender: int, place: Place, watch: Watch) -> list[memoryview]:
        self._wait(lambda: (sender, place) in self._early, watch)
        return self._early.pop((sender, place))

    def _wait(self, is_over: Callable[[], bool], watch: Watch) -> None:
        """Wait until ``is_over()``; raise `Aborted` if a machine will not come to this meeting."""
        while not is_over():
            self._look_for_failures()
            if not self._take_in(WATCH_SECONDS):
                watch()
                self._look_for_cuts()

    def _look_for_cuts(self) -> None:
        """Raise `LinkLost` if a machine cannot be reached, since a meeting needs all machines."""
        if cut := self._links.cut():
            raise LinkLost(
                f"no connection to {', '.join(cut)} any more, though the first machine may reach both ends; "
                "synk.restart() links all machines anew, synk.close() ends the run"
            )

    def _look_for_failures(self) -> None:
        """Raise `Aborted` if a machine has sent that it will not come to this meeting of the command."""
        for place in self._failures.values():
            if place.command == self._command and place.meeting <= self._n_meetings + 1:
                raise Aborted

    def _take_in(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for messages, and note those that have arrived or throw them away.

        Messages of earlier commands are thrown away. Return whether any data was sent or received.
        """
        moved = self._links.rest(seconds)
        self._links.receive(self._take)
        return moved

    def _take(self, sender: int, message: memoryview) -> None:
        """Note a message as a failure or as payloads, unless its command is over."""
        place, payloads = unpack(message)
        if place.command < self._command:
            return
        if place.round == FAILED:
            self._failures[sender] = place
        else:
            self._early[sender, place] = payloads


def pack(place: Place, payloads: Sequence[memoryview]) -> bytes:
    """Return the bytes of a message with this place and these payloads."""
    lengths = [LENGTH.pack(payload.nbytes) for payload in payloads]
    return b"".join([HEAD.pack(*place, len(payloads)), *lengths, *payloads])


def unpack(message: memoryview) -> tuple[Place, list[memoryview]]:
    """Return the place of a message in the run, and its payloads."""
    command, meeting, round, count = HEAD.unpack_from(message)
    start = HEAD.size + count * LENGTH.size
    payloads = []
    for (length,) in LENGTH.iter_unpack(message[HEAD.size : start]):
        payloads.append(message[start : start + length])
        start += length
    return Place(command, meeting, round), payloads
