"""Combine large arrays by MPI on behalf of rank 0, which stays outside of the MPI job to outlive a machine.

    AgentReduce (rank 0) -> ReduceInPlace -> Agent -> AllReduce ... -> Reduced -> AgentReduce

Arrays are combined where they are, in segments that both have mapped.
"""

from __future__ import annotations

import select
import socket
import traceback
from typing import Any

from synk.transport.commands.frames import Receiver, encode, send
from synk.transport.machines.agent_messages import DropSegment, GiveUp, Reduced, ReduceInPlace, ShareSegment
from synk.transport.machines.links import Reduction
from synk.transport.memory.shm import Segment


class Interrupted(Exception):
    """Rank 0 has given up what it had asked for."""


class Agent:
    """The process of the MPI job that rank 0 has beside it, on the same machine."""

    def __init__(self, reduction: Reduction, end: socket.socket):
        self._reduction, self._end = reduction, end
        self._receiver = Receiver(end)
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)
        self._segments: dict[int, Segment] = {}

    def run(self) -> None:
        """Do as rank 0 says, until it is gone: then `Disconnected` is raised."""
        while True:
            self._do(*self._receiver.receive())

    def _do(self, message: Any, descriptor: int | None) -> None:
        match message:
            case ShareSegment(segment, nbytes):
                assert descriptor is not None
                self._segments[segment] = Segment.attach(descriptor, nbytes)
            case DropSegment(segment):
                self._segments.pop(segment).close()
            case GiveUp(number):
                self._reduction.give_up(number)
            case _:
                self._answer(message)

    def _answer(self, question: ReduceInPlace) -> None:
        answer = Reduced(question.number)
        try:
            array = self._segments[question.segment].array(question.dtype, (question.size,), question.offset)
            self._reduction.run(array, question.op, question.number, self._look)
        except Interrupted:
            return
        except Exception:
            answer = Reduced(question.number, traceback.format_exc())
        send(self._end, encode(answer))

    def _look(self) -> None:
        """See whether rank 0 has given up, or is gone: else it says nothing before it is answered."""
        if self._ready.poll(0):
            raise Interrupted
