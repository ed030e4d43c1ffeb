"""The agent: a process that takes part in MPI reductions on behalf of rank 0.

Rank 0 is no process of the MPI job, since that would end it when a machine of the job is lost. The agent is,
and runs on rank 0's machine.

    AgentReduce (rank 0) -> ReduceInPlace -> Agent -> AllReduce ... -> Reduced -> AgentReduce

Arrays are combined in place, in shared-memory segments that rank 0 and the agent both map.
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
    """Rank 0 has given up the reduction that it had asked for, or has ended."""


class Agent:
    """Carries out the messages that rank 0 sends through the socket ``end``, with ``reduction`` over MPI."""

    def __init__(self, reduction: Reduction, end: socket.socket):
        self._reduction, self._end = reduction, end
        self._receiver = Receiver(end)
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)
        self._segments: dict[int, Segment] = {}

    def run(self) -> None:
        """Carry out rank 0's messages one after the other; raise `Disconnected` when rank 0 has ended."""
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
        """Run one reduction and send `Reduced`, with a traceback if it failed; nothing if it was given up."""
        answer = Reduced(question.number)
        try:
            array = self._segments[question.segment].array(question.dtype, (question.size,), question.offset)
            self._reduction.run(array, question.op, question.number, self._check_rank_0)
        except Interrupted:
            return
        except Exception:
            answer = Reduced(question.number, traceback.format_exc())
        send(self._end, encode(answer))

    def _check_rank_0(self) -> None:
        """Raise `Interrupted` if rank 0 has given up the running reduction, or has ended."""
        # In all other cases rank 0 sends nothing until it has its answer.
        if self._ready.poll(0):
            raise Interrupted
