"""The leader of a machine that does not run the script: its first rank, which stands in for the master there.

    LeaderSpec, messages of the master -> Leader: its workers, and its own part of each command -> replies

Like the master it has workers, segments and an arena of its own. It takes commands and other messages from
the master instead of a script, and passes them on to its workers.
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
from synk.run.launch.birth import set_up_rank_process
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.placement import Binding, placement
from synk.run.launch.recovery import RunState
from synk.run.launch.start_workers import launch
from synk.run.launch.surroundings import Surroundings
from synk.run.rank.connection import Connection
from synk.run.rank.failures import failure
from synk.run.rank.loop import answer
from synk.transport.commands.interfaces import CLOSE_SECONDS, Disconnected, Leaders
from synk.transport.commands.leader_link import InquiryAnswer, LeaderEnd, Loss
from synk.transport.commands.mirror import write
from synk.transport.commands.steps import KnownSteps
from synk.transport.machines.tree import PlacedMachine
from synk.transport.memory.segments import SegmentTable, remade
from synk.transport.processes.signals import ignore_signals
from synk.values import messages
from synk.values.by_value import dumps
from synk.values.errors import Failure
from synk.values.machine import Machine

PUSH_SECONDS = 0.01  # how often it looks for messages of the master while it sends arrays to other leaders
OWN_NUMBERS = 1 << 40  # the first number of segments that a leader makes itself: the master's are smaller


@dataclass
class LeaderSpec:
    """The message from which a leader starts: its machine, and the state of the run.

    Attributes
    ----------
    machine : Machine
        This machine, and the numbers of its ranks.
    devices : Devices
        The devices of the master's machine.
    connection : Connection
        How arrays go from rank to rank on each machine.
    segments : sequence of Attach
        The numbers and sizes of the master's segments. Their contents come with the commands that read them.
    state : RunState
        The state that the ranks start from, without segments.
    surroundings : Surroundings
        Working folder, arguments and settings of the master.
    """

    machine: Machine
    devices: Devices
    connection: Connection
    segments: Sequence[messages.Attach]
    state: RunState
    surroundings: Surroundings


class WorkerLost(Exception):
    """A worker of this machine has died, so this machine can run no further command."""

    def __init__(self, loss: Loss):
        self.loss = loss


class Leader:
    """The rank at place 0 of a machine, and the workers beside it."""

    def __init__(self, end: LeaderEnd, spec: LeaderSpec, leaders: Leaders):
        spec.surroundings.enter()
        devices = spec.devices.with_ranks(spec.machine.n_places)
        self._end, self._machine, self._devices = end, spec.machine, devices
        self._leaders = leaders
        self._released: deque[Any] = deque()  # messages to workers that wait until no command is running
        self._steps = KnownSteps()
        self._earlier_failure: Failure | None = (
            None  # of a message without an answer; told with the next reply
        )
        self._not_made: dict[int, Failure] = {}  # by segment number: why the segment could not be made
        set_up_rank_process(spec.machine.first)
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
        """Return the process ids of this machine's ranks, and on which CPUs and devices they are."""
        pids = self._crew.pids()
        return pids, placement(pids, self._devices, self._machine.host, self._machine.first)

    def serve(self) -> None:
        """Handle the master's messages until it sends `Close`; raise `Disconnected` if it is gone."""
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
        """Yield the master's messages until `Close`; while none comes, send arrays on to other leaders."""
        while True:
            if self._rank.has_garbage and not self._end.pending():
                gc.collect()  # for the same reason as in `rank.loop.serve`
                self._rank.has_garbage = False
            while not self._end.pending() and self._leaders.push(PUSH_SECONDS):
                pass
            message, _ = self._end.receive()
            if isinstance(message, messages.Close):
                return
            yield message

    def _replies(self, relay: messages.Relay) -> list[messages.Reply]:
        """Run a command on all ranks of this machine, and return their replies."""
        while self._released:
            self._channel.post(self._released.popleft())
        steps: tuple[Any, ...] = ()
        with self._keeping_failure():
            steps = self._steps.of(relay.steps)
        with self._keeping_failure():
            self._write(relay.fills, steps)
        command = messages.Command(relay.number, steps, relay.start, relay.stop)
        self._channel.command(command)
        earlier_failure, self._earlier_failure = self._earlier_failure, None
        replies = [answer(self._rank, command, earlier_failure)]
        try:
            replies += self._channel.collect()
        except WorkerLost:
            raise
        except Exception as error:  # a worker's reply cannot be unpickled here
            failed = messages.Reply((), failure(self._rank.rank, error))
            replies += [failed] * (self._machine.n_places - 1)
        for reply in replies:
            if reply.failure is not None:
                reply.failure = reply.failure._replace(host=self._machine.host)
        return replies

    def _reply(self, replies: list[messages.Reply]) -> None:
        """Send replies to the master; a reply that cannot be pickled is replaced by one with the reason."""
        try:
            self._end.reply(replies)
        except Disconnected:
            raise
        except Exception:
            ranks, host = self._machine.ranks, self._machine.host
            self._end.reply([readable(*one, host) for one in zip(ranks, replies, strict=True)])

    def _write(self, fills: Sequence[messages.Fill], steps: Sequence[Any]) -> None:
        """Write the changed contents of segments that came with a command.

        If the command reads a segment that could not be made here, it fails. Other segments are written all
        the same, since the master does not send their contents again.
        """
        if self._not_made:
            readers = messages.Readers(self._machine.ranks, self._machine.n_ranks, (0, 0))
            for part in messages.parts_in(tuple(steps), readers):
                self._earlier_failure = self._earlier_failure or self._not_made.get(part.ref.segment)
        write([fill for fill in fills if fill.segment not in self._not_made], self._segments)

    def _prepare(self, message: Any) -> None:
        """Handle a message that has no reply, and pass it on to the workers."""
        for one in message.messages if isinstance(message, messages.Several) else [message]:
            with self._keeping_failure():
                if isinstance(one, Exception):  # unpickling the message has raised it
                    raise one
                self._follow(one)

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        """Keep an exception raised inside this context for the next reply, unless it is `WorkerLost`."""
        try:
            yield
        except WorkerLost:
            raise
        except Exception as error:
            self._earlier_failure = self._earlier_failure or failure(self._rank.rank, error)

    def _follow(self, message: Any) -> None:
        """Do what one message says, on this rank and on the workers."""
        if isinstance(message, messages.Attach):
            self._make(message)
        else:
            self._channel.post(message)
            self._rank.prepare(message)

    def _make(self, message: messages.Attach) -> None:
        """Make this machine's own segment for one of the master's; the workers attach it."""
        try:
            self._segments.make(message)
        except Exception as error:
            self._not_made[message.segment] = failure(self._rank.rank, error)
            raise

    def _on_death(self, rank: int) -> Any:
        """Raise WorkerLost for a dead worker, given by its place on this machine."""
        death = self._crew.death(rank)
        host = self._machine.host
        raise WorkerLost(
            Loss(self._machine.ranks[rank], death._replace(cause=f"{death.cause} on host {host}"))
        )

    def _on_late_here(self, late: Sequence[int]) -> None:
        """Call `_on_late` with ranks that are given by their places on this machine."""
        self._on_late([self._machine.ranks[place] for place in late])

    def _on_late(self, late: Sequence[int]) -> None:
        """While waiting for the ranks ``late``, raise if the master is gone, or send it states if it asks."""
        if self._end.hung_up():
            raise Disconnected
        if self._end.is_asked():
            ranks, host = self._machine.ranks, self._machine.host
            states = [
                state._replace(rank=rank, state=f"{state.state} on host {host}")
                for rank, state in zip(ranks, self._crew.states(), strict=True)
            ]
            here = [rank for rank in late if rank in ranks]
            self._end.reply(InquiryAnswer(tuple(here), tuple(states)))

    def close(self) -> None:
        """End the workers, and close the connections to other machines."""
        self._crew.dismiss(CLOSE_SECONDS)
        self._rank.end_threads()
        self._rank.disconnect()
        self._segments.close()


def lead(end: LeaderEnd, link: Callable[[], Leaders]) -> bool:
    """Be a leader until the end of the run; return whether the master has ended it properly.

    ``end`` is the connection to the master. ``link()`` links this leader with all others, and returns the
    links.
    """
    ignore_signals()
    # MPI's launcher sends SIGTERM before it kills this process: then the master is told the reason.
    signal.signal(signal.SIGTERM, lambda *_: end.say_ended())
    with suppress(Disconnected), ExitStack() as made:
        made.callback(end.close)
        try:
            leaders = made.enter_context(closing(link()))
            spec, _ = end.receive()
            if isinstance(spec, Exception):
                raise spec
            leader = Leader(end, spec, leaders)
        except Exception as error:
            end.reply(failure(0, error))  # its rank may not be known yet; the master names the host instead
            return False
        made.callback(leader.close)
        end.reply(leader.greeting())
        leader.serve()
        return True
    return False


def readable(rank: int, reply: messages.Reply, host: str) -> messages.Reply:
    """Return a reply unchanged if it can be pickled, else one with the reason why not, and the host."""
    try:
        dumps(reply)
        return reply
    except Exception as error:
        reason = reply.failure or failure(rank, error)
        return messages.Reply((), reason._replace(kind=None, host=host), reply.aborted)
