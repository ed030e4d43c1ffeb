"""The leaders of a run on the other machines, from when they have called the master until they have ended.

A leader calls by connecting to the master's socket.

JoinedWorld, StartedJobs -> Job, with all leaders that have called -> launch_on_machines ... end
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from synk.transport.commands.interfaces import Leaders
from synk.transport.machines.proof import Hello

CALL_SECONDS = 18.0  # the time for all leaders to call; a run starts, or says why it does not, within 20 s

LeaderConnection = tuple[socket.socket, Hello]  # the socket to a leader, and what it has sent about itself


def hang_up(called: Sequence[LeaderConnection]) -> None:
    """Close the connections to leaders that have called; the leaders end when they notice."""
    for end, _ in called:
        end.close()


class Jobs(Protocol):
    """The source of the jobs of a run: one job at its start, another one at each restart."""

    def call(self) -> Job:
        """Wait until the leaders of all machines have called, and return them as a job."""

    def call_left(self, lost: Sequence[str]) -> Job:
        """Return a job of the machines that are left; hosts in ``lost`` are used if they answer again."""

    def use(self, hosts: Any) -> None:
        """Use these machines from the next job on; ``hosts`` are as in `synk.fork`."""


class Job:
    """The leaders of all other machines, which have called, and functions that watch and end their processes.

    Attributes
    ----------
    hosts : list of str
        Names of all machines, this one's first.
    sizes : list of int
        The number of ranks of each machine.
    ends : list of socket
        Connections to the leaders of the other machines, in the order of ``hosts``.
    leaders : Leaders
        The links by which this machine exchanges arrays with the leaders.
    end : callable
        ``end(seconds)`` ends the processes; those that were asked to leave have so many seconds.
    watch : callable
        ``watch()`` raises if the processes have ended already.
    show : callable
        ``show()`` prints what they have written to standard error.
    held : list
        Objects with file descriptors that workers inherit and must close.
    """

    def __init__(
        self,
        host: str,
        n_here: int,
        called: Sequence[LeaderConnection],
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
        """End the job's processes, because the run did not start."""
        self.end(0)
        for end in self.ends:
            end.close()
        self.leaders.close()
