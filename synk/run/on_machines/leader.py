"""The first rank of a machine that has no script: a master whose script is a stream of frames.

    LeaderSpec, frames -> Leader: its workers, and its own part of each command -> replies, in one frame

It keeps a crew, segments and an arena of its own, as the master does, and gives on what comes from there.
"""

from __future__ import annotations

import gc
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from synk.run.arrays.arena import Arena
from synk.run.arrays.variables import RankVariables
from synk.run.device import Devices
from synk.run.launch.birth import become_rank
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.placement import Binding, placement
from synk.run.launch.recovery import RunState
from synk.run.launch.start_workers import launch
from synk.run.launch.surroundings import Surroundings
from synk.run.rank.connection import Connection
from synk.run.rank.failures import failure
from synk.run.rank.loop import answer
from synk.transport.commands.interfaces import CLOSE_SECONDS, Disconnected, Leaders
from synk.transport.commands.leader_link import LeaderEnd, Loss, Standing
from synk.transport.commands.mirror import write
from synk.transport.commands.steps import KnownSteps
from synk.transport.machines.tree import PlacedMachine
from synk.transport.memory.segments import SegmentTable, remade
from synk.transport.processes.signals import ignore_signals
from synk.values import messages
from synk.values.by_value import dumps
from synk.values.errors import Failure
from synk.values.machine import Machine

PUSH_SECONDS = 0.01  # between looks whether the master has said something
OWN_NUMBERS = 1 << 40  # segments that this machine makes for itself count from here


@dataclass
class LeaderSpec:
    """One machine of a run: what its leader starts from.

    Attributes
    ----------
    machine : Machine
    devices : Devices
        Of the master's machine.
    connection : Connection
        How arrays meet on each machine.
    segments : sequence of Attach
        Which there are; what is in them comes with the commands that read it.
    state : RunState
        Of its ranks, without segments.
    surroundings : Surroundings
        Of the master.
    """

    machine: Machine
    devices: Devices
    connection: Connection
    segments: Sequence[messages.Attach]
    state: RunState
    surroundings: Surroundings


class WorkerLost(Exception):
    """A worker of this machine has died, so the machine's part in the run is over."""

    def __init__(self, loss: Loss):
        self.loss = loss


class Leader:
    """The rank at place 0 of a machine, and the workers beside it."""

    def __init__(self, end: LeaderEnd, spec: LeaderSpec, leaders: Leaders):
        spec.surroundings.enter()
        devices = spec.devices.with_ranks(spec.machine.n_places)
        self._end, self._machine, self._devices = end, spec.machine, devices
        self._leaders = leaders
        self._released: deque[Any] = deque()  # until the workers are at rest
        self._steps = KnownSteps()
        self._trouble: Failure | None = None  # of a message without an answer; told with the next reply
        self._not_made: dict[int, Failure] = {}  # by segment, of which there are no two with one number
        become_rank(spec.machine.first)
        state = replace(spec.state, segments={one.segment: remade(one) for one in spec.segments})
        self._crew = launch(ForkSource(), devices, spec.connection, state, spec.machine, [end, leaders])
        self._channel = self._crew.open_channel(self._on_death, self._on_late_here)
        self._segments = SegmentTable(self._channel.post, self._released.append, first=OWN_NUMBERS)
        self._segments.hold(state.segments)
        Binding(devices, 0)
        device = devices.make(0)
        device.activate()
        peers = self._crew.peers(self._on_death, self._on_late, leaders)
        arena = Arena(self._segments, nullcontext)
        communicator = spec.connection.communicator(peers, device, arena.grow)
        variables = RankVariables(peers.rank, device.to_host, device.from_host)
        self._rank = spec.connection.rank(peers, communicator, device, self._segments, variables)
        for message in state.messages(peers.rank):
            self._rank.prepare(message)

    def greeting(self) -> tuple[tuple[int, ...], PlacedMachine]:
        """Return the process ids of this machine's ranks, and where these are."""
        pids = self._crew.pids()
        return pids, placement(pids, self._devices, self._machine.host, self._machine.first)

    def serve(self) -> None:
        """Follow the master's frames until it says `Close`; raise `Disconnected` if it is gone."""
        for message in self._messages():
            try:
                if isinstance(message, messages.Relay):
                    self._reply(self._replies(message))
                else:
                    self._prepare(message)
            except WorkerLost as lost:
                self._rank.peers.abandon()
                self._end.reply(lost.loss)

    def _messages(self) -> Iterator[Any]:
        while True:
            if self._rank.has_garbage and not self._end.pending():
                gc.collect()  # as `serve` does in a worker
                self._rank.has_garbage = False
            while not self._end.pending() and self._leaders.push(PUSH_SECONDS):
                pass
            message, _ = self._end.receive()
            if isinstance(message, messages.Close):
                return
            yield message

    def _replies(self, relay: messages.Relay) -> list[messages.Reply]:
        """Run a command on all ranks of this machine."""
        while self._released:
            self._channel.post(self._released.popleft())
        steps: tuple[Any, ...] = ()
        with self._troubling():
            steps = self._steps.of(relay.steps)
        with self._troubling():
            self._write(relay.fills, steps)
        command = messages.Command(relay.number, steps, relay.start, relay.stop)
        self._channel.command(command)
        trouble, self._trouble = self._trouble, None
        replies = [answer(self._rank, command, trouble)]
        try:
            replies += self._channel.collect()
        except WorkerLost:
            raise
        except Exception as error:  # what a worker sent cannot be read here
            told = messages.Reply((), failure(self._rank.rank, error))
            replies += [told] * (self._machine.n_places - 1)
        for reply in replies:
            if reply.failure is not None:
                reply.failure = reply.failure._replace(host=self._machine.host)
        return replies

    def _reply(self, replies: list[messages.Reply]) -> None:
        """Send replies; of one that cannot be pickled, the reason."""
        try:
            self._end.reply(replies)
        except Disconnected:
            raise
        except Exception:
            ranks, host = self._machine.ranks, self._machine.host
            self._end.reply([readable(*one, host) for one in zip(ranks, replies, strict=True)])

    def _write(self, fills: Sequence[messages.Fill], steps: Sequence[Any]) -> None:
        """Write what has changed; a segment that could not be made is the failure of a machine that reads it.

        What comes beside it is written all the same: the master does not send it again.
        """
        if self._not_made:
            readers = messages.Readers(self._machine.ranks, self._machine.n_ranks, (0, 0))
            for part in messages.parts_in(tuple(steps), readers):
                self._trouble = self._trouble or self._not_made.get(part.ref.segment)
        write([fill for fill in fills if fill.segment not in self._not_made], self._segments)

    def _prepare(self, message: Any) -> None:
        """Follow a message without an answer, and give it on to the workers."""
        for one in message.messages if isinstance(message, messages.Several) else [message]:
            with self._troubling():
                if isinstance(one, Exception):  # raised by unpickling it
                    raise one
                self._follow(one)

    @contextmanager
    def _troubling(self) -> Iterator[None]:
        """Keep what is raised for the next reply, but the end of a worker."""
        try:
            yield
        except WorkerLost:
            raise
        except Exception as error:
            self._trouble = self._trouble or failure(self._rank.rank, error)

    def _follow(self, message: Any) -> None:
        if isinstance(message, messages.Attach):
            self._make(message)
        else:
            self._channel.post(message)
            self._rank.prepare(message)

    def _make(self, message: messages.Attach) -> None:
        try:
            self._segments.make(message)
        except Exception as error:
            self._not_made[message.segment] = failure(self._rank.rank, error)
            raise

    def _on_death(self, rank: int) -> Any:
        death = self._crew.death(rank)
        host = self._machine.host
        raise WorkerLost(
            Loss(self._machine.ranks[rank], death._replace(cause=f"{death.cause} on host {host}"))
        )

    def _on_late_here(self, late: Sequence[int]) -> None:
        self._on_late([self._machine.ranks[place] for place in late])

    def _on_late(self, late: Sequence[int]) -> None:
        """Give up if the master is gone, and tell it what this one waits for if it wants to know."""
        if self._end.hung_up():
            raise Disconnected
        if self._end.is_asked():
            ranks, host = self._machine.ranks, self._machine.host
            states = [
                state._replace(rank=rank, state=f"{state.state} on host {host}")
                for rank, state in zip(ranks, self._crew.states(), strict=True)
            ]
            here = [rank for rank in late if rank in ranks]
            self._end.reply(Standing(tuple(here), tuple(states)))

    def close(self) -> None:
        """End the workers, and give up what links this machine to the others."""
        self._crew.dismiss(CLOSE_SECONDS)
        self._rank.end_threads()
        self._rank.disconnect()
        self._segments.close()


def lead(end: LeaderEnd, link: Callable[[], Leaders]) -> bool:
    """Be a leader until the end of the run; return whether the master has said that it is the end.

    ``link()`` returns the leaders of all machines.
    """
    ignore_signals()
    signal.signal(signal.SIGTERM, lambda *_: end.say_ended())  # by MPI's launcher, before it kills
    with suppress(Disconnected), ExitStack() as made:
        made.callback(end.close)
        try:
            leaders = made.enter_context(closing(link()))
            spec, _ = end.receive()
            if isinstance(spec, Exception):
                raise spec
            leader = Leader(end, spec, leaders)
        except Exception as error:
            end.reply(failure(0, error))  # whichever rank it was to be: it is told by its host
            return False
        made.callback(leader.close)
        end.reply(leader.greeting())
        leader.serve()
        return True
    return False


def readable(rank: int, reply: messages.Reply, host: str) -> messages.Reply:
    """Return a reply as it is if it can be sent, else one that says why not, and on which host."""
    try:
        dumps(reply)
        return reply
    except Exception as error:
        told = reply.failure or failure(rank, error)
        return messages.Reply((), told._replace(kind=None, host=host), reply.aborted)
