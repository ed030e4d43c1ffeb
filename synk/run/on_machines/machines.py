"""The workers of a run on several machines: those of the master's machine, and the leaders of the others.

    Job -> launch_on_machines -> a Crew here, a LeaderSpec to each leader -> Machines (`Workers`) ... dismiss

If synk has started the MPI job itself, the master is no process of the job: MPI would end it when a machine
is lost. Instead an agent on its machine, which is a process of the job, takes part in all-reduces of large
arrays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from time import monotonic

from synk.run.device import Devices
from synk.run.launch.crew import Crew
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.recovery import RunState
from synk.run.launch.start_workers import launch
from synk.run.launch.surroundings import Surroundings
from synk.run.on_machines.job import Job
from synk.run.on_machines.leader import LeaderSpec
from synk.run.rank.connection import Connection
from synk.transport.commands.deadline import Deadline
from synk.transport.commands.frames import encode
from synk.transport.commands.interfaces import Channel, Death, OnDeath, OnLate, Peers
from synk.transport.commands.leader_link import LeaderLink
from synk.transport.commands.machines_channel import MachinesChannel, look_at
from synk.transport.commands.mirror import Mirror
from synk.transport.machines.tree import PlacedMachine
from synk.transport.memory.segments import SegmentTable
from synk.transport.processes.process import Process
from synk.values.errors import Failure, RankState, SynkStateError, SynkTimeout
from synk.values.machine import machines

START_SECONDS = 60.0  # how long leaders have to fork their workers
# How long a waiting leader has to answer: it looks for questions every 0.1 s, and reads stacks for 0.5 s.
ANSWER_SECONDS = 1.0


class Machines:
    """The workers of all machines; it implements `Workers`."""

    def __init__(
        self,
        crew: Crew,
        links: Sequence[LeaderLink],
        placements: Sequence[PlacedMachine],
        mirror: Mirror,
        job: Job,
    ):
        self._crew, self._links, self._mirror, self._job = crew, links, mirror, job
        self._placements = placements
        self._on_death: OnDeath = lambda rank: None
        self.show_output = self._show_output

    def _show_output(self) -> None:
        if self._crew.show_output is not None:
            self._crew.show_output()
        self._job.show()

    def open_channel(self, on_death: OnDeath, on_late: OnLate) -> Channel:
        self._on_death = on_death
        elsewhere = [
            RankState(rank, pid, f"on host {link.machine.host}", "not told", "")
            for link in self._links
            for rank, pid in zip(link.machine.ranks, link.pids, strict=True)
        ]
        here = self._crew.open_channel(on_death, on_late, elsewhere)
        return MachinesChannel(here, self._links, self._mirror, self._job.leaders, on_death, on_late)

    def peers(self, on_death: OnDeath, on_late: OnLate) -> Peers:
        return self._crew.peers(on_death, on_late, self._job.leaders)

    def look(self, deadline: Deadline, late: Sequence[int]) -> None:
        look_at(self._links, self._on_death)
        try:
            self._crew.look(deadline, late)
        except SynkTimeout as error:
            raise with_remote_ranks(error, self._links) from None

    def death(self, rank: int) -> Death:
        losses = [link.loss for link in self._links if link.loss is not None and rank in link.machine.ranks]
        return losses[0].death if losses else self._crew.death(rank)

    def lost_hosts(self) -> list[str]:
        """Return the hosts of the leaders to which the connection is lost."""
        return [link.machine.host for link in self._links if link.is_cut]

    def placements(self, devices: Devices) -> list[PlacedMachine]:
        """Return all machines with their ranks; other machines as they were when their ranks were forked."""
        return [*self._crew.placements(devices), *self._placements]

    def pids(self) -> tuple[int, ...]:
        return (*self._crew.pids(), *chain.from_iterable(link.pids for link in self._links))

    def dismiss(self, seconds: float) -> dict[str, Process]:
        try:
            for link in self._links if seconds else ():
                link.dismiss()
            return self._crew.dismiss(seconds)
        finally:
            self._job.end(seconds)
            for link in self._links:
                link.close()


def with_remote_ranks(error: SynkTimeout, links: Sequence[LeaderLink]) -> SynkTimeout:
    """Return the error of a timeout with the late ranks and the stacks that leaders of other machines report.

    A leader that waits for ranks can answer. One that does not answer within `ANSWER_SECONDS` is late itself.
    """
    asked = [link for link in links if link.replies is None]
    deadline = monotonic() + ANSWER_SECONDS
    for link in asked:
        link.inquire()
    for link in asked:
        link.hear(deadline)
    states = {state.rank: state for state in error.ranks}
    late = [rank for rank in error.late if not any(rank in link.machine.ranks for link in links)]
    for link in asked:
        if link.inquiry_answer is not None:
            late += link.inquiry_answer.late
            states |= {state.rank: state for state in link.inquiry_answer.ranks}
        elif link.replies is None:
            late.append(link.machine.first)
    return SynkTimeout(error.seconds, error.function, tuple(late) or error.late, tuple(states.values()))


def launch_on_machines(
    job: Job,
    source: ForkSource,
    devices: Devices,
    connection: Connection,
    state: RunState,
    segments: SegmentTable,
) -> Machines:
    """Start the workers of all machines of a job, and return them; this process is rank 0.

    ``devices`` are those of this machine; ``state`` is what all workers start from.
    """
    of_hosts = machines(job.hosts, job.sizes)
    here = of_hosts[0]
    with ExitStack() as undo:
        undo.callback(job.give_up)
        crew = launch(source, devices, connection, state, here, [*job.ends, *job.held])
        undo.callback(crew.dismiss, 0)
        links = [LeaderLink(machine, end) for machine, end in zip(of_hosts[1:], job.ends, strict=True)]
        deadline = monotonic() + START_SECONDS

        def watch() -> None:
            job.watch()
            if monotonic() >= deadline:
                raise SynkStateError(f"not all machines have started their ranks within {START_SECONDS:g} s")

        for link in links:
            link.patience = watch
            empty = replace(state, segments={})
            known = segments.as_messages(), empty, Surroundings.present(of_another_machine=True)
            link.send(encode(LeaderSpec(link.machine, devices, connection, *known)))
        for link in links:
            link.hear(deadline)
        # If a leader could not start its ranks, the launcher ends the others. Its failure is greeted, and so
        # raised, first, before the ends of the others.
        reasons_first = sorted(links, key=lambda link: (not isinstance(link.replies, Failure), link.is_ended))
        greetings = {link.machine: link.greet(START_SECONDS) for link in reasons_first}
        undo.pop_all()
    placements = [greetings[link.machine] for link in links]
    return Machines(crew, links, placements, Mirror(segments, [link.machine for link in links]), job)
