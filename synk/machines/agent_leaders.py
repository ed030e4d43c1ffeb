"""The leaders of all machines as rank 0 sees them, which is not in the MPI job: an agent beside it is.

    all_gather, all_reduce -> question -> Agent ... -> Answer

While rank 0 waits it sleeps, and looks up now and then.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from synk.machines.agent_messages import Answer, Fail, Gather, Reduce, Share, Unshare
from synk.machines.links import Watch, spin
from synk.memory.shm import Segment
from synk.transport.base import Aborted, Disconnected
from synk.transport.frames import Outbox, Receiver, encode, send
from synk.values.errors import SynkError

WATCH_MILLISECONDS = 20
END_SECONDS = 5.0  # for the MPI job to end with the agent, and for that to be noticed
ROOM = 0  # number of the segment for arrays that are in none


class AgentFailed(SynkError, RuntimeError):
    """The agent that speaks MPI for rank 0 has raised."""


class AgentLeaders:
    """The leaders of all machines, by way of the agent at the other end of a socket: `Leaders`.

    ``all_gather`` and ``all_reduce`` raise `Disconnected` once the agent is gone.
    """

    machine = 0

    def __init__(self, end: socket.socket, n_machines: int):
        self.n_machines = n_machines
        self._end = end
        self._receiver, self._outbox = Receiver(end), Outbox()
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)
        self._torn = False  # a message may have been sent or received in part
        self._command = self._asked = 0
        self._shared: dict[int, tuple[int, Segment]] = {}  # by number: address, segment

    def begin(self, command: int) -> None:
        self._command = command

    def fail(self) -> None:
        with contextlib.suppress(Disconnected):
            self._send(Fail(self._command))

    def share(self, number: int, segment: Segment) -> None:
        with contextlib.suppress(Disconnected):  # the next meeting tells
            self._send(Share(number, segment.nbytes), segment.descriptor)
        self._shared[number] = address(segment.array("u1", (segment.nbytes,))), segment

    def unshare(self, number: int) -> None:
        if self._shared.pop(number, None) is not None:
            with contextlib.suppress(Disconnected):
                self._send(Unshare(number))

    def all_gather(self, payload: Any, watch: Watch) -> list[bytes]:
        self._asked += 1
        result = self._ask(Gather(self._asked, self._command, pickle.PickleBuffer(payload)), watch)
        return [bytes(one) for one in result]

    def all_reduce(self, array: NDArray[Any], op: str, watch: Watch) -> None:
        place = self._place(array)
        if place is not None:
            self._reduce(place, array, op, watch)
            return
        space = self._space_for(array)
        space[...] = array
        self._reduce((ROOM, 0), array, op, watch)
        array[...] = space

    def push(self, seconds: float) -> bool:
        return False  # the agent does

    def close(self) -> None:
        self._end.close()
        self._receiver.close()
        self._outbox.close()
        self._shared.clear()

    # --- arrays ------------------------------------------------------------------------------------

    def _place(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return the number of the shared segment that has an array, and where in it that begins."""
        start = address(array)
        for number, (first, segment) in self._shared.items():
            if first <= start and start + array.nbytes <= first + segment.nbytes:
                return number, start - first
        return None

    def _space_for(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array like this one, at the start of the segment for such."""
        if ROOM not in self._shared or self._shared[ROOM][1].nbytes < array.nbytes:
            segment = Segment.create(array.nbytes)
            self.unshare(ROOM)
            self.share(ROOM, segment)
            segment.seal()
        return self._shared[ROOM][1].array(array.dtype, array.shape)

    def _reduce(self, place: tuple[int, int], array: NDArray[Any], op: str, watch: Watch) -> None:
        self._asked += 1
        self._ask(Reduce(self._asked, self._command, op, *place, array.dtype.str, array.size), watch)

    # --- messages ----------------------------------------------------------------------------------

    def _ask(self, question: Gather | Reduce, watch: Watch) -> Any:
        """Return the result of a meeting; whatever ends the wait for it, the agent leaves that meeting."""
        try:
            self._send(question)
            answer = self._receive(watch)
            while answer.number != question.number:  # of one that was given up
                answer = self._receive(watch)
        except Disconnected:
            self._watch_the_end(watch)
            raise
        except BaseException:
            self.fail()
            raise
        if answer.aborted:
            raise Aborted
        if answer.failure:
            raise AgentFailed(f"the agent of rank 0 in the MPI job has failed:\n{answer.failure}")
        return answer.result

    def _watch_the_end(self, watch: Watch) -> None:
        """Let it be found that machines are lost: where the agent is gone, their leaders end in a moment."""
        deadline = time.monotonic() + END_SECONDS
        while self._agent_is_gone() and time.monotonic() < deadline:
            time.sleep(WATCH_MILLISECONDS / 1000)
            watch()

    def _agent_is_gone(self) -> bool:
        return any(event & select.POLLHUP for _, event in self._ready.poll(0))

    def _receive(self, watch: Watch) -> Answer:
        if not spin(self._ready):
            while not self._ready.poll(WATCH_MILLISECONDS):
                watch()
        with self._whole():
            answer: Answer = self._receiver.receive()[0]
        return answer

    def _send(self, message: Any, descriptor: int | None = None) -> None:
        frame = encode(message, self._outbox)
        with self._whole():
            send(self._end, frame if descriptor is None else frame._replace(descriptor=descriptor))
        self._outbox.sent()

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
