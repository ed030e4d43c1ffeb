"""The interfaces by which the ranks of a run exchange commands, replies and failures.

    Commands (master) -> Channel.command, collect -> WorkerChannel.receive, reply <- serve (worker)
    Rank -> Peers.fail, phase -> the other ranks

Ranks on one machine are connected by shared memory: `channel.MasterChannel`, `channel.WorkerChannel`,
`sync.Barrier` and, for the processes, ``run.launch.crew.Crew``. To connect ranks in another way, implement
these classes, and a `Communicator` for arrays; in ``tests/support/transport`` ranks are threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from synk.transport.commands.deadline import Deadline
from synk.transport.memory.shm import Segment
from synk.values.machine import Machine
from synk.values.messages import Command, Reply

CLOSE_SECONDS = 2.0  # that a worker has to end by itself

OnDeath = Callable[[int], Any]  # called with the rank of a worker that is found dead; raises
OnLate = Callable[[Sequence[int]], None]  # called now and then with ranks that are late; raises to give up


class Aborted(Exception):
    """Another rank failed in this command, so the ranks cannot finish it together."""


class Disconnected(Exception):
    """The process at the other end of a connection is gone."""


class Peers(Protocol):
    """The means by which one rank tells the other ranks that it begins or fails, and what it is doing.

    Attributes
    ----------
    rank, n_ranks : int
        Of this rank in the whole run.
    machine : Machine, optional
        The machine of this rank, in a run on several.
    place, n_places : int
        The number of this rank among the ranks of its machine, and how many these are.
    phase : mutable sequence of one int
        What this rank is doing, one of `messages.PHASES`, for the others to read.
    """

    rank: int
    n_ranks: int
    machine: Machine | None
    place: int
    n_places: int
    phase: Any

    def begin(self, command: int) -> None:
        """Start a command, numbered 1, 2, ...: what was left of an aborted one no longer counts."""

    def fail(self) -> None:
        """Tell all ranks that this one will not come to any further meeting of this command."""

    def abandon(self) -> None:
        """Tell all ranks that this one will not come to any further meeting at all."""


class Leaders(Protocol):
    """The means by which the leader of a machine exchanges values with the leaders of all others.

    Each leader stands for the ranks of its machine. All leaders call the same methods in the same order.
    While a leader waits, it calls ``watch()`` now and then, which raises to give up.

    Attributes
    ----------
    machine, n_machines : int
    """

    machine: int
    n_machines: int

    def begin(self, command: int) -> None:
        """Start a command, numbered 1, 2, ...: what was left of an aborted one no longer counts."""

    def fail(self) -> None:
        """Tell the others that no rank of this machine will come to any further meeting of this command."""

    def push(self, seconds: float) -> bool:
        """Send messages that are waiting to be sent, for ``seconds`` at most; return whether some still wait.

        If so, call it again soon: nothing is sent while this process does something else.
        """

    def all_gather(self, payload: Any, watch: Callable[[], Any]) -> list[Any]:
        """Return the ``payload`` of each machine as bytes, in the order of machines; lengths may differ.

        Raises
        ------
        Aborted
            If another machine has failed in this command before it came here.
        """

    def all_reduce(self, array: Any, op: str, watch: Callable[[], Any]) -> None:
        """Combine the flat contiguous arrays of all machines in place, with the same bits on each.

        ``op`` is "sum", "prod", "min" or "max" (NaN wins). The arrays must have one dtype and length, which
        the machines have compared by `all_gather` in this command.

        Raises
        ------
        Aborted
            If another machine has failed before this, or during it; then arrays are combined in part only.
        """

    def share(self, number: int, segment: Segment) -> None:
        """Prepare a segment so that arrays in it are combined without a copy; it must not be sealed yet."""

    def unshare(self, number: int) -> None:
        """Forget the segment that was shared under this number, if there is one."""

    def close(self) -> None:
        """Close the connections to the other machines, whose leaders may have ended already."""


class Channel(Protocol):
    """The means by which the master sends messages to all workers and collects their replies.

    Attributes
    ----------
    waiting : bool
        Whether a command was sent, and `collect` has not returned its replies.
    torn : bool
        Whether something may have been sent or read in part only.
    """

    waiting: bool

    @property
    def torn(self) -> bool: ...

    def command(self, command: Command) -> None:
        """Send a command to all workers."""

    def post(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message to all workers; it is pickled once, before anything is sent."""

    def collect(self, seconds: float | None = None) -> list[Reply]:
        """Return one reply from every worker, in rank order.

        If an exception ends the wait, it can be called again unless the channel is `torn`.

        Raises
        ------
        TimeoutError
            If not all have answered after ``seconds``.
        Exception
            The error of unpickling a reply, after all have answered.
        """

    def close(self) -> None:
        """Release the memory of the workers' replies."""


class CommandSource(Protocol):
    """The means by which a worker receives messages from the master and replies to commands."""

    def receive(self) -> tuple[Any, int | None]:
        """Wait for the next message; return it, and the descriptor that came with it or None.

        Raises
        ------
        Disconnected
            When the master is gone.
        """

    def pending(self) -> bool:
        """Tell whether a message has come, so that `receive` need not wait."""

    def reply(self, message: Reply) -> None:
        """Send the reply to the last command."""


class Death(NamedTuple):
    """The death of a worker: its cause, and what it was doing."""

    pid: int
    cause: str  # "signal SIGKILL" or "exit code 3"
    phase: str  # one of `messages.PHASES`
    stderr: str  # the last lines of its standard error
    lost: Machine | None = None  # the machine, if all of it was lost


class Workers(Protocol):
    """The workers of a run, as the master starts, watches and ends them.

    Attributes
    ----------
    show_output : callable or None
        Prints what the workers have printed since the last call; None if they print by themselves.
    """

    show_output: Callable[[], None] | None

    def open_channel(self, on_death: OnDeath, on_late: OnLate) -> Channel:
        """Return the master's channel to the workers."""

    def peers(self, on_death: OnDeath, on_late: OnLate) -> Peers:
        """Return the `Peers` of rank 0; ``on_death`` is called with the rank of a worker that died."""

    def look(self, deadline: Deadline, late: Sequence[int]) -> None:
        """Check the ranks ``late``, for which the master waits, and warn of those that keep it waiting.

        Raises
        ------
        SynkTimeout
            If the command is past its deadline.
        """

    def death(self, rank: int) -> Death:
        """Return how a worker that was found dead has ended."""

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all ranks, in rank order."""

    def dismiss(self, seconds: float) -> Any:
        """End all workers, killing them after ``seconds``; return those, by name, that are still there."""
