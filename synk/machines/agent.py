"""Speak MPI on behalf of rank 0, which stays outside of the MPI job so that it outlives a machine.

    AgentLeaders (rank 0) -> Gather, Reduce -> Agent -> MpiLeaders ... -> Answer -> AgentLeaders

Arrays are combined where they are, in segments that both have mapped.
"""

from __future__ import annotations

import select
import socket
import traceback
from typing import Any

from synk.machines.agent_messages import Answer, Fail, Gather, Reduce, Share, Unshare
from synk.machines.links import spin
from synk.memory.shm import Segment
from synk.transport.base import Aborted, Leaders
from synk.transport.frames import Outbox, Receiver, encode, send

PUSH_SECONDS = 0.01  # between looks whether rank 0 has said something


class Interrupted(Exception):
    """Rank 0 has given up what it had asked for."""


class Agent:
    """The process of the MPI job that rank 0 has beside it, on the same machine."""

    def __init__(self, leaders: Leaders, end: socket.socket):
        self._leaders, self._end = leaders, end
        self._receiver, self._outbox = Receiver(end), Outbox()
        self._ready = select.poll()
        self._ready.register(end, select.POLLIN)
        self._segments: dict[int, Segment] = {}
        self._command = 0

    def run(self) -> None:
        """Do as rank 0 says, until it is gone: then `Disconnected` is raised."""
        while True:
            while not self._ready.poll(0) and self._leaders.push(PUSH_SECONDS):
                pass
            self._do(*self._receiver.receive())

    def _do(self, message: Any, descriptor: int | None) -> None:
        match message:
            case Share(segment, nbytes):
                assert descriptor is not None
                self._segments[segment] = Segment.attach(descriptor, nbytes)
            case Unshare(segment):
                self._segments.pop(segment).close()
            case Fail(command):
                self._begin(command)
                self._leaders.fail()
            case _:
                self._answer(message)

    def _answer(self, question: Gather | Reduce) -> None:
        self._begin(question.command)
        try:
            answer = Answer(question.number, self._meet(question))
        except Interrupted:
            return
        except Aborted:
            answer = Answer(question.number, None, aborted=True)
        except Exception:
            answer = Answer(question.number, None, failure=traceback.format_exc())
        send(self._end, encode(answer, self._outbox))
        self._outbox.sent()
        spin(self._ready)  # collectives of a step follow each other

    def _begin(self, command: int) -> None:
        if command != self._command:
            self._command = command
            self._leaders.begin(command)

    def _meet(self, question: Gather | Reduce) -> list[Any] | None:
        if isinstance(question, Gather):
            return self._leaders.all_gather(question.payload, self._look)
        segment = self._segments[question.segment]
        array = segment.array(question.dtype, (question.size,), question.offset)
        self._leaders.all_reduce(array, question.op, self._look)
        return None

    def _look(self) -> None:
        """See whether rank 0 has given up, or is gone: else it says nothing before it is answered."""
        if self._ready.poll(0):
            raise Interrupted
