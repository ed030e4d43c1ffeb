"""Rank 0's side of a reduction by its agent: rank 0 is not in the MPI job, so the agent combines for it.

run -> ReduceInPlace -> Agent ... -> Reduced
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from synk.transport.commands.frames import Receiver, encode, send
from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines.agent_messages import DropSegment, GiveUp, Reduced, ReduceInPlace, ShareSegment
from synk.transport.machines.links import WATCH_SECONDS, Watch
from synk.transport.memory.shm import Segment
from synk.values.errors import SynkError

END_SECONDS = 5.0  # within which the MPI job ends after its agent, and the master notices it
ROOM = 0  # number of the segment into which arrays are copied that lie in no shared segment


class AgentFailed(SynkError, RuntimeError):
    """The agent, which takes part in MPI reductions for rank 0, has raised an exception."""


class AgentReduce:
    """A `Reduction` for rank 0: the agent at the other end of the socket ``end`` does the all-reduces.

    ``run`` raises `Disconnected` once the agent has ended.
    """

    def __init__(self, end: socket.socket):
        self._end = end
        self._receiver = Receiver(end)
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)
        self._torn = False  # a message may have been sent or received in part
        # The bytes of shared segments by number. An entry keeps its segment mapped, so that no other array
        # can get an address inside it, and be taken for an array of the segment.
        self._shared: dict[int, NDArray[Any]] = {}

    def run(self, array: NDArray[Any], op: str, number: int, watch: Watch) -> None:
        place = self._place(array)
        if place is not None:
            self._ask(ReduceInPlace(number, op, *place, array.dtype.str, array.size), watch)
            return
        space = self._space_for(array)
        space[...] = array
        self._ask(ReduceInPlace(number, op, ROOM, 0, array.dtype.str, array.size), watch)
        array[...] = space

    def give_up(self, number: int) -> None:
        with contextlib.suppress(Disconnected):
            self._send(GiveUp(number))

    def share(self, number: int, segment: Segment) -> None:
        with contextlib.suppress(Disconnected):  # the next reduction tells
            self._send(ShareSegment(number, segment.nbytes), segment.descriptor)
        self._shared[number] = segment.array("u1", (segment.nbytes,))

    def unshare(self, number: int) -> None:
        if self._shared.pop(number, None) is not None:
            with contextlib.suppress(Disconnected):
                self._send(DropSegment(number))

    def close(self) -> None:
        self._end.close()
        self._receiver.close()
        self._shared.clear()

    # --- arrays ------------------------------------------------------------------------------------

    def _place(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return the number of the shared segment that holds an array, and its offset there in bytes.

        Return None if the array lies in no shared segment.
        """
        start = address(array)
        for number, shared in self._shared.items():
            first = address(shared)
            if first <= start and start + array.nbytes <= first + shared.nbytes:
                return number, start - first
        return None

    def _space_for(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array of the same size and dtype in the segment `ROOM`, which grows if needed."""
        if ROOM not in self._shared or self._shared[ROOM].nbytes < array.nbytes:
            segment = Segment.create(array.nbytes)
            self.unshare(ROOM)
            self.share(ROOM, segment)
            segment.seal()
        return self._shared[ROOM][: array.nbytes].view(array.dtype)

    # --- messages ----------------------------------------------------------------------------------

    def _ask(self, question: ReduceInPlace, watch: Watch) -> None:
        """Let the agent do a reduction, and wait for its end."""
        try:
            self._send(question)
            answer = self._receive(watch)
            while answer.number != question.number:  # the answer to a reduction that was given up
                answer = self._receive(watch)
        except Disconnected:
            self._watch_the_end(watch)
            raise
        if answer.failure:
            raise AgentFailed(f"the agent of rank 0 in the MPI job has failed:\n{answer.failure}")

    def _watch_the_end(self, watch: Watch) -> None:
        """Call ``watch`` for some seconds if the agent has ended: its error may say more.

        The agent ends when the MPI job does, as when a machine is lost: ``watch`` then finds its leader gone.
        """
        deadline = time.monotonic() + END_SECONDS
        while self._agent_is_gone() and time.monotonic() < deadline:
            time.sleep(WATCH_SECONDS)
            watch()

    def _agent_is_gone(self) -> bool:
        return any(event & select.POLLHUP for _, event in self._ready.poll(0))

    def _receive(self, watch: Watch) -> Reduced:
        while not self._ready.poll(1000 * WATCH_SECONDS):
            watch()
        with self._whole_message():
            answer: Reduced = self._receiver.receive()[0]
        return answer

    def _send(self, message: Any, descriptor: int | None = None) -> None:
        frame = encode(message)
        with self._whole_message():
            send(self._end, frame if descriptor is None else frame._replace(descriptor=descriptor))

    @contextlib.contextmanager
    def _whole_message(self) -> Iterator[None]:
        """Guard the sending or receiving of a message: if it is interrupted, all later ones raise.

        After a part of a message the two ends would no longer agree on where the next one begins.
        """
        if self._torn:
            raise Disconnected
        self._torn = True
        yield
        self._torn = False


def address(array: NDArray[Any]) -> int:
    """Return the address in this process's memory at which an array begins."""
    return int(array.__array_interface__["data"][0])
