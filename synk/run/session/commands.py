"""One command at a time: post it to the workers, do rank 0's part, collect the replies.

    turn -> run(steps) -> post, Rank.run, collect -> results by step, then by rank

Failures and deaths of workers are raised here, and messages wait here until no command is running.
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
INTERRUPT_SECONDS = 1.5  # for workers to answer when the master was interrupted
BROKEN_SECONDS = 0.5  # for workers to leave a broken run: those that did not answer hardly will now


class Commands:
    """The master's side of all commands of a run.

    ``temporary`` is freed at the end of every turn, however that ends.
    """

    _workers: Workers
    _channel: Channel
    _rank: Rank

    def __init__(self, turns: Turns):
        self._turns = turns
        self.temporary: StagingBuffers | None = None
        self._posting = False
        self._growing = False
        self._hurry = False  # whether a second interrupt came, in the wait for an interrupted command
        self._number = 0  # of the last command
        self._released: deque[Any] = deque()
        self._broken: BaseException | None = None
        self._deadline = Deadline(NOTHING)

    def connect(self, workers: Workers, rank: Rank) -> None:
        """Command these workers from now on, and do the part of rank 0 by ``rank``: the run is usable."""
        self._workers, self._rank = workers, rank
        self._channel = workers.open_channel(self.on_death, self.on_late)
        self._broken = None

    def check_usable(self) -> None:
        """Raise what broke the run, if something did."""
        if self._broken is not None:
            # Without the frames of those it was raised to before: they hold arrays.
            raise self._broken.with_traceback(None)

    # --- commands ----------------------------------------------------------------------------------

    def turn(self, label: str) -> Turn:
        """Return a context in which a call is prepared and run, and other threads are kept out.

        On entering it raises SynkStateError if this thread is inside another call, in a signal handler, say;
        or what broke the run.
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
            The rows that spans with `messages.IN_COMMAND` in them mean.

        Returns
        -------
        list of tuple
            Results by step, then by rank.

        Raises
        ------
        RemoteError
            If ranks raised; with one rank, what it raised itself.
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
            if self._channel.waiting:  # an exception has come, and the replies were not taken in
                self._break(SynkStateError(f"the run was interrupted in the middle of a command; {REMEDY}"))
                self.check_usable()
            rank.peers.begin(command.number)  # before workers may wait for this rank to fail
            self._channel.command(command)
            try:
                mine = rank.run(command)
            except BaseException as caught:
                error = caught
            self.check_usable()
            replies = self._channel.collect() if error is None else self._collect(error)
        except BaseException:  # a signal handler may raise between any two lines
            if self._turns.closed:  # by another thread, which did not wait for the end of this
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
                lost.__cause__ = None  # whose traceback would be kept, too
                self._break(lost)
                raise
            finally:
                error = None  # its traceback refers to this frame: a cycle, which lives on for long
        return list(zip(mine, *[reply.results for reply in replies], strict=True))

    def _collect(self, error: BaseException) -> list[messages.Reply]:
        """Wait for all replies, but only a moment if a signal handler's exception has ended rank 0's part."""
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
        """Take in the replies that are still to come, so that the next command does not find them."""
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

        Raises SynkStateError in the middle of a command, whose messages would be mistaken, or of another
        message.
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
                # Not where pickling failed: nothing was sent then.
                if self._channel.torn and self._broken is None:
                    self._break(SynkStateError(f"the run was interrupted while a message was sent; {REMEDY}"))
                raise
            finally:
                self._posting = False

    @contextmanager
    def growth(self) -> Iterator[None]:
        """Let a message through in the middle of a command: the one that its workers wait for."""
        self._growing = True
        try:
            yield
        finally:
            self._growing = False

    def release(self, message: Any) -> None:
        """Post a message when the run is next at rest; safe in finalizers, at any moment."""
        if not self._turns.is_open():
            return
        self._released.append(message)
        if self._turns.lock.acquire(blocking=False):
            try:
                if self._turns.label is None and not self._posting:
                    # What a finalizer raises is lost: the next call raises it.
                    with hold_signals(later=True), suppress(WorkerDied, SynkTimeout):
                        self._flush()
            finally:
                self._turns.lock.release()

    def release_later(self, message: Any) -> None:
        """Post a message with the next one that is released, or at the end of a turn; safe like `release`."""
        if self._turns.is_open():
            self._released.append(message)

    def _flush(self) -> None:
        if self._released and not self._turns.closed and self._broken is None:
            # Finalizers may add to them meanwhile.
            self.post(messages.Several(tuple([self._released.popleft() for _ in range(len(self._released))])))

    # --- the end -----------------------------------------------------------------------------------

    def on_death(self, rank: int) -> Any:
        """Raise WorkerDied; let the other ranks out of whatever they wait for."""
        pid, cause, phase, stderr, lost = self._workers.death(rank)
        label = self._turns.label or NOTHING
        error = WorkerDied(rank, pid, cause, phase, label, stderr)
        if lost is not None:
            error = MachineLost(lost.host, tuple(lost.ranks), label, cause)
        self._break(error)
        raise error

    def on_late(self, late: Sequence[int]) -> None:
        """Look at the ranks that this one waits for; raise SynkTimeout where that took too long."""
        try:
            self._workers.look(self._deadline, late)
        except SynkTimeout as error:
            self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = error
            self._rank.peers.abandon()

    def renewal(self, label: str) -> Turn:
        """Return a context that closes the channel to the workers first; in it, `connect` takes new ones.

        On entering it raises SynkStateError if the run was closed, or this thread is inside a call.
        """
        return self._turns.take(label, self._give_up, self._flush)

    def _give_up(self) -> None:
        self._break(SynkStateError(f"the run could not be restarted; {REMEDY}"))
        self._deadline = Deadline(NOTHING)  # new workers start for as long as it takes
        self._channel.close()
        self._hurry = False
        self._released.clear()  # what new workers are born with is without it

    @contextmanager
    def ending(self, label: str) -> Iterator[float]:
        """Refuse everything from now on; yield how many seconds workers have to leave.

        Raises SynkStateError if this thread is inside a call.
        """
        if self._turns.is_inside():
            raise SynkStateError(f"{label} was called in the middle of {self._turns.label}")
        # Another thread's call ends first, unless it takes too long: it finds its workers dead then.
        alone = self._turns.lock.acquire(timeout=INTERRUPT_SECONDS)
        try:
            self._turns.closed = True
            seconds = CLOSE_SECONDS if self._broken is None else BROKEN_SECONDS
            self._broken = None  # its traceback holds frames, and those hold shared memory
            self._channel.close()
            yield seconds if alone and not self._hurry else 0.0
        finally:
            if alone:
                self._turns.lock.release()
