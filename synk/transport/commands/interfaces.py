"""The seam between the ranks of a run: the classes by which commands, replies and failures travel.

    Commands (master) -> Channel.command, collect -> WorkerChannel.receive, reply <- serve (worker)
    Rank -> Peers.fail, phase -> the other ranks

Ranks on one machine are connected by shared memory: `channel.MasterChannel`, `channel.WorkerChannel`,
`sync.Barrier` and, for the processes, ``run.launch.crew.Crew``. Another way to connect them implements these
classes, and a `Communicator` for their arrays; in ``tests/support/transport`` ranks are threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from synk.transport.commands.deadline import Deadline
from synk.transport.memory.shm import Segment
from synk.values.machine import Machine
from synk.values.messages import Command, Reply

CLOSE_SECONDS = 2.0  # for a worker to leave on its own

OnDeath = Callable[[int], Any]  # called with the rank of a worker that is found dead; raises
OnLate = Callable[[Sequence[int]], None]  # called now and then with ranks that are late; raises to give up


class Aborted(Exception):
    """Another rank failed in this command, so what this rank waits for will not come."""


class Disconnected(Exception):
    """The process at the other end is gone."""


class Peers(Protocol):
    """The other ranks, as one rank sees them.

    Attributes
    ----------
    rank, n_ranks : int
    machine : Machine, optional
        Of several, that of this rank.
    place, n_places : int
        The same among the ranks of this machine.
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
    """The leaders of all machines, as one of them sees them: each stands for the ranks of its machine.

    All call the same methods in the same order. While one waits, it calls ``watch()`` now and then, which
    raises to give up.

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
        """Take so long at most to let leave what was sent, a failure, say; return whether something has not.

        Then it is to be called again before long: nothing leaves while this process does something else.
        """

    def all_gather(self, payload: Any, watch: Callable[[], Any]) -> list[Any]:
        """Return the bytes that each machine brings, in the order of machines; their lengths may differ.

        Raises
        ------
        Aborted
            If another machine has failed in this command before it came here.
        """

    def all_reduce(self, array: Any, op: str, watch: Callable[[], Any]) -> None:
        """Combine flat contiguous arrays in place, with the same bits everywhere.

        ``op`` is "sum", "prod", "min" or "max" (NaN wins). All machines bring one dtype and length, as they
        have told each other by `all_gather` in this command.

        Raises
        ------
        Aborted
            If another machine has failed before it came here, or in here; arrays are combined in part then.
        """

    def share(self, number: int, segment: Segment) -> None:
        """Let arrays in a segment, which still has its descriptor, be combined where they are."""

    def unshare(self, number: int) -> None:
        """Forget the segment of this number, if there is one."""

    def close(self) -> None:
        """Give up what links this machine to the others; their leaders may have ended."""


class Channel(Protocol):
    """The master's way to all workers.

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

        Left by an exception while it waits, it can be called again; see `waiting` and `torn`.

        Raises
        ------
        TimeoutError
            If not all have answered after ``seconds``.
        Exception
            What unpickling a reply raised, once all have answered.
        """

    def close(self) -> None:
        """Let go of what the workers sent."""


class CommandSource(Protocol):
    """A worker's way to the master."""

    def receive(self) -> tuple[Any, int | None]:
        """Wait for the next message and the descriptor that came with it.

        Raises
        ------
        Disconnected
            When the master is gone.
        """

    def pending(self) -> bool:
        """Return whether `receive` need not wait."""

    def reply(self, message: Reply) -> None:
        """Answer the last command."""


class Death(NamedTuple):
    """The end of a worker."""

    pid: int
    cause: str
    phase: str  # in which it died
    stderr: str  # the last lines
    lost: Machine | None = None  # with all ranks on it


class Workers(Protocol):
    """The workers of a run, as the master has them.

    Attributes
    ----------
    show_output : callable or None
        Shows what workers have printed; None where they print by themselves.
    """

    show_output: Callable[[], None] | None

    def open_channel(self, on_death: OnDeath, on_late: OnLate) -> Channel:
        """Return the master's channel to them."""

    def peers(self, on_death: OnDeath, on_late: OnLate) -> Peers:
        """Return the workers as rank 0 meets them; ``on_death`` is called with a dead worker's rank."""

    def look(self, deadline: Deadline, late: Sequence[int]) -> None:
        """Look at ranks that the master waits for in a command, and warn of those that keep it waiting.

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
        """End all workers, at once if ``seconds`` is 0; return those, by name, that are still there."""
