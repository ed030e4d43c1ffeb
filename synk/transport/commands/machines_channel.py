"""The master's channel in a run on several machines: to its own workers and to the leaders of other machines.

MachinesChannel.command -> a Relay to each leader, a command to the workers here
                collect <- replies of all ranks, in one frame from each machine
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from synk.transport.commands.frames import Frame, encode
from synk.transport.commands.interfaces import Channel, Leaders, OnDeath, OnLate
from synk.transport.commands.leader_link import LeaderLink
from synk.transport.commands.mirror import Mirror
from synk.transport.commands.steps import PickledSteps
from synk.transport.commands.sync import SLEEP_SECONDS
from synk.values import messages

LAUNCHER = "ended by SIGTERM, as by mpirun when that, or its agent beside rank 0, has ended"


class MachinesChannel:
    """The master's channel to its own workers and to the leaders of other machines; it implements `Channel`.

    ``here`` is the channel to the workers of this machine, ``links`` are the connections to the leaders.
    """

    def __init__(
        self,
        here: Channel,
        links: Sequence[LeaderLink],
        mirror: Mirror,
        leaders: Leaders,
        on_death: OnDeath,
        on_late: OnLate,
    ):
        self._here, self._links, self._mirror, self._leaders = here, links, mirror, leaders
        self._on_death, self._on_late = on_death, on_late
        self._pickled = PickledSteps()
        # The replies of this machine's workers, or the error that unpickling them has raised.
        self._replies: list[messages.Reply] | Exception | None = None
        self._deadline: float | None = None  # of `collect`
        self._torn = False
        self.waiting = False
        for link in links:
            link.patience = self._while_waiting

    @property
    def torn(self) -> bool:
        return self._torn or self._here.torn or any(link.torn for link in self._links)

    def command(self, command: messages.Command) -> None:
        steps = self._pickled.of(command.steps)
        relay = messages.Relay((), command.number, steps, command.start, command.stop)
        fills = self._mirror.fills(command)
        self._torn = self.waiting = True
        self._mirror.sent()
        self._replies = None
        if any(fills):
            self._send([encode(relay._replace(fills=one)) for one in fills])
        else:
            self._send([encode(relay)] * len(self._links))
        self._here.command(command)
        self._torn = False

    def _send(self, frames: Sequence[Frame]) -> None:
        self._deadline = None
        for link, frame in zip(self._links, frames, strict=True):
            link.replies = None
            link.send(frame)

    def post(self, message: Any, descriptor: int | None = None) -> None:
        if not self.waiting:  # in the middle of a command, such as a grown arena, it is for this machine only
            frames = [encode(message)] * len(self._links)
            self._torn = True
            self._send(frames)
            self._torn = False
        for one in message.messages if isinstance(message, messages.Several) else [message]:
            if isinstance(one, messages.Attach) and one.file is None:
                self._leaders.share(one.segment, self._mirror.segments[one.segment])
            elif isinstance(one, messages.Detach):
                self._mirror.forget(one.segment)
                self._leaders.unshare(one.segment)
        self._here.post(message, descriptor)

    def collect(self, seconds: float | None = None) -> list[messages.Reply]:
        self._deadline = None if seconds is None else time.monotonic() + seconds
        if self._replies is None:
            self._replies = self._collect_here(seconds)
        while waits := [link for link in self._links if link.replies is None]:
            self._await(waits)
        self.waiting = False
        replies = [self._replies, *(link.replies for link in self._links)]
        for one in replies:
            if isinstance(one, Exception):
                raise one
        return list(chain.from_iterable(replies))

    def _collect_here(self, seconds: float | None) -> list[messages.Reply] | Exception:
        try:
            return self._here.collect(seconds)
        except Exception as error:
            if self._here.waiting:  # not all have answered
                raise
            return error

    def _await(self, links: Sequence[LeaderLink]) -> None:
        """Wait a moment for replies of the first of ``links``; if there are none, call ``on_late``."""
        self._check_deadline()
        left = self._leaders.push(SLEEP_SECONDS)
        links[0].look(0.0 if left else SLEEP_SECONDS)
        look_at(self._links, self._on_death)
        if links[0].replies is None:
            self._on_late([rank for link in links if link.replies is None for rank in link.machine.ranks])

    def _while_waiting(self) -> None:
        """Raise if it is time to give up on a leader; called while a frame to or from it is incomplete."""
        self._check_deadline()
        self._on_late([rank for link in self._links for rank in link.machine.ranks if link.torn])

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeoutError("not all machines have answered")

    def close(self) -> None:
        self._here.close()


def look_at(links: Sequence[LeaderLink], on_death: OnDeath) -> None:
    """Read the messages that leaders have sent, and call ``on_death`` if a rank or machine was lost.

    If one machine is lost, the launcher ends the processes of all others; then the first one is reported, as
    soon as it is known. If the launcher has ended all of them, the launcher itself was ended.
    """
    for link in links:
        link.look()
    losses = [link for link in links if link.loss is not None]
    first = next((link for link in losses if not link.is_ended), None)
    if first is None and len(losses) == len(links):
        first = next(iter(losses), None)
        if first is not None and first.is_cut:
            first.blame(LAUNCHER)
    if first is not None:
        assert first.loss is not None
        on_death(first.loss.rank)
