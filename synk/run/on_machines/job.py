"""The processes that a run has on other machines, from when they have called until they have ended.

JoinedWorld, StartedJobs -> Job: who has called -> launch_on_machines ... end
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from synk.transport.commands.interfaces import Leaders
from synk.transport.machines.proof import Hello

CALL_SECONDS = 18.0  # for all leaders to call: of the 20 s in which a run starts, or says why not

Called = tuple[socket.socket, Hello]  # a connection to a leader, and what it has said of itself


def hang_up(called: Sequence[Called]) -> None:
    """Close the connections to leaders, which end then."""
    for end, _ in called:
        end.close()


class Jobs(Protocol):
    """The source of the jobs of a run: one at its start, another at each restart."""

    def call(self) -> Job:
        """Return a job, once all its leaders have called."""

    def call_left(self, lost: Sequence[str]) -> Job:
        """Return a job of the machines that are left; of those ``lost`` some may answer again."""

    def use(self, hosts: Any) -> None:
        """Go on with these machines, as of `synk.fork`."""


class Job:
    """The leaders of all other machines, which have called, and what ends their processes.

    Attributes
    ----------
    hosts : list of str
        Names of all machines, this one's first.
    sizes : list of int
        Ranks of each.
    ends : list of socket
        Connections to the leaders of the others, in order.
    leaders : Leaders
        As this machine sees them.
    end : callable
        Ends the processes; ``end(seconds)`` gives those that were asked to leave so long.
    watch : callable
        Raises if the processes have ended already.
    show : callable
        Shows what they have written to standard error.
    held : list
        What workers inherit and are to close.
    """

    def __init__(
        self,
        host: str,
        n_here: int,
        called: Sequence[Called],
        leaders: Leaders,
        end: Callable[[float], Any] = lambda seconds: None,
        watch: Callable[[], Any] = lambda: None,
        show: Callable[[], Any] = lambda: None,
        held: Sequence[Any] = (),
    ):
        ordered = sorted(called, key=lambda one: one[1]["machine"])
        self.ends = [connection for connection, _ in ordered]
        self.hosts = [host, *(hello["host"] for _, hello in ordered)]
        self.sizes = [n_here, *(hello["ranks"] for _, hello in ordered)]
        self.leaders, self.end, self.watch, self.show = leaders, end, watch, show
        self.held = [leaders, *held]

    def give_up(self) -> None:
        """End a job that does not become a run."""
        self.end(0)
        for end in self.ends:
            end.close()
        self.leaders.close()
