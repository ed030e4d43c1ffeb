"""Run one command at a time: send it to the workers, do rank 0's part, collect the replies.

    turn -> run(steps) -> command to the workers, Rank.run, replies -> results by step, then by rank

Failures and deaths of workers are raised here, and other messages to workers wait here until no command is
running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from synk.run.rank.failures import raise_failures
from synk.run.rank.rank import Rank
from synk.run.session.turns import MESSAGE, Turn, Turns
from synk.transport.commands.deadline import Deadline
from synk.transport.commands.interfaces import CLOSE_SECONDS, Channel, Workers
from synk.transport.memory.segments import StagingBuffers
from synk.transport.processes.signals import hold_signals
from synk.values import messages
from synk.values.errors import LinkLost, MachineLost, SynkStateError, SynkTimeout, WorkerDied

NOTHING = "no command"
REMEDY = "synk.restart() starts new workers, synk.close() ends the run"
INTERRUPT_SECONDS = 1.5  # how long the master waits for replies after an interrupt
BROKEN_SECONDS = 0.5  # how long `close` waits for workers of a broken run: they are unlikely to answer


class Commands:
    """The master's side of all commands of a run.

    The staging buffers ``temporary`` are freed at the end of every turn, also after an exception.
    """

    _workers: Workers
    _channel: Channel
    _rank: Rank

    def __init__(self, turns: Turns):
        self._turns = turns
        self.temporary: StagingBuffers | None = None
        self._posting = False  # whether a message is being sent
        self._growing = False  # whether a message may be sent in the middle of a command
        self._hurry = False  # whether a second interrupt came while the master waited after the first
        self._number = 0  # of the last command
        self._released: deque[Any] = deque()  # messages to be sent when no command is running
        self._broken: BaseException | None = None  # what has broken the run
        self._deadline = Deadline(NOTHING)

    def connect(self, workers: Workers, rank: Rank) -> None:
        """Send commands to these workers from now on; ``rank`` does rank 0's part. The run is usable then."""
        self._workers, self._rank = workers, rank
        self._channel = workers.open_channel(self.on_death, self.on_late)
        self._broken = None

    def check_usable(self) -> None:
        """Raise the error that has broken the run, if one has."""
        if self._broken is not None:
            # Without the traceback of earlier raises: its frames hold arrays.
            raise self._broken.with_traceback(None)

    # --- commands ----------------------------------------------------------------------------------

    def turn(self, label: str) -> Turn:
        """Return a context in which a call is prepared and run while other threads wait.

        Entering it raises SynkStateError if this thread is inside another call (in a signal handler, say),
        and the error that has broken the run, if one has.
        """
        return self._turns.take(label, self._begin, self._end)

    def _begin(self) -> None:
        self.check_usable()
        self._deadline = self._turns.deadline()

    def _end(self) -> None:
        try:
            if self.temporary is not None and self.temporary.owners:
                self.temporary.drop_all()
            if self._workers.show_output is not None:
                self._workers.show_output()
        finally:
            self._flush()

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        """Run steps on all ranks as one command.

        Parameters
        ----------
        steps : tuple of messages
        start, stop : int
            The rows of the calls whose span is `messages.IN_COMMAND` instead of rows of its own.

        Returns
        -------
        list of tuple
            Results by step, then by rank.

        Raises
        ------
        RemoteError
            If ranks raised. In a run of one rank, its own exception is raised instead.
        WorkerDied
            If a worker died.
        """
        assert self._turns.label is not None, "commands run in turns"
        rank = self._rank
        self._number += 1
        command = messages.Command(self._number, steps, start, stop)
        mine: tuple[Any, ...] = ()
        error: BaseException | None = None
        try:
            self.check_usable()
            if self._channel.waiting:  # a former command was interrupted before its replies were received
                self._break(SynkStateError(f"the run was interrupted in the middle of a command; {REMEDY}"))
                self.check_usable()
            rank.peers.begin(command.number)  # before the workers begin, so that they see if this rank fails
            self._channel.command(command)
            try:
                mine = rank.run(command)
            except BaseException as caught:
                error = caught
            self.check_usable()
            replies = self._channel.collect() if error is None else self._collect(error)
        except BaseException:  # a signal handler may raise between any two lines
            if self._turns.closed:  # another thread closed the run without waiting for this command
                raise SynkStateError(f"{self._turns.label}: its run was closed meanwhile") from None
            self._come_to_rest(rank)
            raise
        failed = error is not None
        for reply in replies:
            failed |= reply.aborted or reply.failure is not None
        if failed:
            try:
                raise_failures(error, replies)
            except LinkLost as lost:
                lost.__cause__ = None  # the error is kept in ``_broken``: its cause would keep frames alive
                self._break(lost)
                raise
            finally:
                error = None  # its traceback refers to this frame: the cycle would keep arrays for long
        return list(zip(mine, *[reply.results for reply in replies], strict=True))

    def _collect(self, error: BaseException) -> list[messages.Reply]:
        """Wait for all replies after rank 0 raised ``error``; only a moment if a signal handler raised it."""
        if isinstance(error, Exception):
            return self._channel.collect()
        try:
            return self._channel.collect(INTERRUPT_SECONDS)
        except BaseException as second:
            self._hurry |= not isinstance(second, Exception)
            if self._broken is None:
                self._break(
                    SynkStateError(f"the run was interrupted, and not all workers came back; {REMEDY}")
                )
            raise error from None

    def _come_to_rest(self, rank: Rank) -> None:
        """Receive outstanding replies after an exception, or a next command would take them as its own."""
        if self._broken is not None or not self._channel.waiting:
            return
        rank.peers.fail()
        try:
            if not self._channel.torn:
                self._channel.collect(INTERRUPT_SECONDS)
        except BaseException as second:
            self._hurry |= not isinstance(second, Exception)
        if self._channel.waiting and self._broken is None:
            self._break(SynkStateError(f"the run was interrupted in the middle of a command; {REMEDY}"))

    # --- messages ----------------------------------------------------------------------------------

    def post(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message to all workers.

        Raises SynkStateError if a command is running, as workers would take the message for a part of it, or
        if another message is being sent.
        """
        with self._turns.lock:
            self._turns.check_open("shared memory")  # it may have been closed while this thread waited
            self.check_usable()
            if self._posting or (self._channel.waiting and not self._growing):
                what = self._turns.label or MESSAGE
                raise SynkStateError(f"shared memory was asked for in the middle of {what}")
            if self._turns.label is None:
                self._deadline = self._turns.deadline()
            self._posting = True
            try:
                self._channel.post(message, descriptor)
            except BaseException:
                # If pickling failed, nothing was sent, and the run stays usable.
                if self._channel.torn and self._broken is None:
                    self._break(SynkStateError(f"the run was interrupted while a message was sent; {REMEDY}"))
                raise
            finally:
                self._posting = False

    @contextmanager
    def growth(self) -> Iterator[None]:
        """Allow `post` in the middle of a command, for the larger arena that the workers wait for."""
        self._growing = True
        try:
            yield
        finally:
            self._growing = False

    def release(self, message: Any) -> None:
        """Send a message as soon as no command is running; finalizers may call it, at any moment."""
        if not self._turns.is_open():
            return
        self._released.append(message)
        if self._turns.lock.acquire(blocking=False):
            try:
                if self._turns.label is None and not self._posting:
                    # Python drops what a finalizer raises; the next call raises it again.
                    with hold_signals(later=True), suppress(WorkerDied, SynkTimeout):
                        self._flush()
            finally:
                self._turns.lock.release()

    def release_later(self, message: Any) -> None:
        """Send a message with the next released one, or at the end of a turn; finalizers may call it."""
        if self._turns.is_open():
            self._released.append(message)

    def _flush(self) -> None:
        """Send all messages that wait, in one."""
        if self._released and not self._turns.closed and self._broken is None:
            # By their number, not until none is left: finalizers may add messages at any moment.
            self.post(messages.Several(tuple([self._released.popleft() for _ in range(len(self._released))])))

    # --- the end -----------------------------------------------------------------------------------

    def on_death(self, rank: int) -> Any:
        """Raise the error for a dead rank, and release the other ranks from their barriers."""
        pid, cause, phase, stderr, lost = self._workers.death(rank)
        label = self._turns.label or NOTHING
        error = WorkerDied(rank, pid, cause, phase, label, stderr)
        if lost is not None:
            error = MachineLost(lost.host, tuple(lost.ranks), label, cause)
        self._break(error)
        raise error

    def on_late(self, late: Sequence[int]) -> None:
        """Check on the ranks ``late``, for which rank 0 waits; raise SynkTimeout after the deadline."""
        try:
            self._workers.look(self._deadline, late)
        except SynkTimeout as error:
            self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        """Note that the run is broken by ``error``, unless it is already, and release waiting ranks."""
        if self._broken is None:
            self._broken = error
            self._rank.peers.abandon()

    def renewal(self, label: str) -> Turn:
        """Return a context for a restart.

        Entering it closes the channel to the workers; inside, `connect` takes new ones. Entering it raises
        SynkStateError if the run was closed, or this thread is inside a call.
        """
        return self._turns.take(label, self._give_up, self._flush)

    def _give_up(self) -> None:
        """Part with the present workers; the run is broken until `connect` takes others."""
        self._break(SynkStateError(f"the run could not be restarted; {REMEDY}"))
        self._deadline = Deadline(NOTHING)  # starting new workers may take any time
        self._channel.close()
        self._hurry = False
        self._released.clear()  # these messages drop things, which new workers do not get at all

    @contextmanager
    def ending(self, label: str) -> Iterator[float]:
        """Refuse calls and messages from now on; yield how many seconds the workers have to leave.

        Raises SynkStateError if this thread is inside a call.
        """
        if self._turns.is_inside():
            raise SynkStateError(f"{label} was called in the middle of {self._turns.label}")
        # A call of another thread may end first; if it takes too long, it finds its workers dead.
        alone = self._turns.lock.acquire(timeout=INTERRUPT_SECONDS)
        try:
            self._turns.closed = True
            seconds = CLOSE_SECONDS if self._broken is None else BROKEN_SECONDS
            self._broken = None  # the frames in its traceback would keep shared memory mapped
            self._channel.close()
            yield seconds if alone and not self._hurry else 0.0
        finally:
            if alone:
                self._turns.lock.release()
