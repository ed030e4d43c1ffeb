"""The reductions of rank 0, which is not in the MPI job: an agent beside it is, and combines for it.

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

END_SECONDS = 5.0  # for the MPI job to end with the agent, and for that to be noticed
ROOM = 0  # number of the segment for arrays that are in none


class AgentFailed(SynkError, RuntimeError):
    """The agent that speaks MPI for rank 0 has raised."""


class AgentReduce:
    """The all-reduces of rank 0's machine, by the agent at the other end of a socket: `Reduction`.

    ``run`` raises `Disconnected` once the agent is gone.
    """

    def __init__(self, end: socket.socket):
        self._end = end
        self._receiver = Receiver(end)
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)
        self._torn = False  # a message may have been sent or received in part
        # The bytes of segments by number. While one is here its memory is mapped, though others have let go
        # of it already: else an array that is none of it could lie where it was.
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
        """Return the number of the shared segment that has an array, and where in it that begins."""
        start = address(array)
        for number, shared in self._shared.items():
            first = address(shared)
            if first <= start and start + array.nbytes <= first + shared.nbytes:
                return number, start - first
        return None

    def _space_for(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array like this one, at the start of the segment for such."""
        if ROOM not in self._shared or self._shared[ROOM].nbytes < array.nbytes:
            segment = Segment.create(array.nbytes)
            self.unshare(ROOM)
            self.share(ROOM, segment)
            segment.seal()
        return self._shared[ROOM][: array.nbytes].view(array.dtype)

    # --- messages ----------------------------------------------------------------------------------

    def _ask(self, question: ReduceInPlace, watch: Watch) -> None:
        """Wait for the end of a reduction."""
        try:
            self._send(question)
            answer = self._receive(watch)
            while answer.number != question.number:  # of one that was given up
                answer = self._receive(watch)
        except Disconnected:
            self._watch_the_end(watch)
            raise
        if answer.failure:
            raise AgentFailed(f"the agent of rank 0 in the MPI job has failed:\n{answer.failure}")

    def _watch_the_end(self, watch: Watch) -> None:
        """Let it be found that machines are lost: where the agent is gone, their leaders end in a moment."""
        deadline = time.monotonic() + END_SECONDS
        while self._agent_is_gone() and time.monotonic() < deadline:
            time.sleep(WATCH_SECONDS)
            watch()

    def _agent_is_gone(self) -> bool:
        return any(event & select.POLLHUP for _, event in self._ready.poll(0))

    def _receive(self, watch: Watch) -> Reduced:
        while not self._ready.poll(1000 * WATCH_SECONDS):
            watch()
        with self._whole():
            answer: Reduced = self._receiver.receive()[0]
        return answer

    def _send(self, message: Any, descriptor: int | None = None) -> None:
        frame = encode(message)
        with self._whole():
            send(self._end, frame if descriptor is None else frame._replace(descriptor=descriptor))

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Send or receive a whole message: after a part of one, none can be understood any more."""
        if self._torn:
            raise Disconnected
        self._torn = True
        yield
        self._torn = False


def address(array: NDArray[Any]) -> int:
    """Return where in the memory of this process an array begins."""
    return int(array.__array_interface__["data"][0])
