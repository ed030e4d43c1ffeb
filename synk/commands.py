"""One command at a time: post it to the workers, do rank 0's part, collect the replies.

    turn -> run(steps) -> post, Rank.run, collect -> results by step, then by rank

Also here: who failed, who died, and messages that wait until the run is at rest.

Imports floor 4 and below.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from synk import messages
from synk.channel import MasterChannel
from synk.errors import SynkStateError, WorkerDied, remote_error
from synk.launch import Crew
from synk.sync import Aborted
from synk.worker import Rank, failure

NOTHING = "no command"
INTERRUPT_SECONDS = 1.5  # for workers to answer when the master was interrupted
DEATH_SECONDS = 1.0  # between a closed socket and the end of its process


class Commands:
    """The master's side of all commands of a run.

    Parameters
    ----------
    crew : Crew
        The workers.
    """

    def __init__(self, crew: Crew):
        self._crew = crew
        self._channel: MasterChannel = crew.open_channel(self.on_death)
        self._rank: Rank | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()  # threads take turns
        self._turn: str | None = None  # what the thread that has the lock is about
        self._posting = False
        self._numbers = itertools.count(1)
        self._released: deque[Any] = deque()
        self._broken: BaseException | None = None
        self._closed = False

    def lead(self, rank: Rank) -> None:
        """Take ``rank`` as rank 0, whose part is done here."""
        self._rank = rank

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""
        if os.getpid() != self._pid:
            raise SynkStateError(
                f"{what}: this process is not the master; only the script that forked may call"
            )
        if self._closed:
            raise SynkStateError(f"{what}: its run was closed; make it anew after synk.fork()")

    def check_usable(self) -> None:
        """Raise what broke the run, if something did."""
        if self._broken is not None:
            raise self._broken

    # --- commands ----------------------------------------------------------------------------------

    @contextmanager
    def turn(self, label: str) -> Iterator[None]:
        """Keep other threads out while a call is prepared and run.

        Raises
        ------
        SynkStateError
            If this thread is inside another call: in a signal handler, say.
        WorkerDied
            If the run is broken.
        """
        self.check_open(label)
        with self._lock:
            self.check_open(label)  # it may have been closed while this thread waited
            if self._turn is not None:
                raise SynkStateError(
                    f"{label} was called in the middle of {self._turn}, by a signal handler or finalizer"
                )
            self.check_usable()
            self._turn = label
            try:
                yield
            finally:
                self._turn = None
                self._flush()

    def run(self, steps: Sequence[Any]) -> list[list[Any]]:
        """Run steps on all ranks as one command.

        Returns
        -------
        list of list
            Results by step, then by rank.

        Raises
        ------
        RemoteError
            If ranks raised; with one rank, what it raised itself.
        WorkerDied
            If a worker died.
        """
        assert self._turn is not None, "commands run in turns"
        assert self._rank is not None
        return self._run(self._rank, messages.Run(next(self._numbers), tuple(steps)))

    def _run(self, rank: Rank, command: messages.Run) -> list[list[Any]]:
        self._send(lambda: self._channel.command(command))
        mine: tuple[Any, ...] = ()
        error: BaseException | None = None
        try:
            mine = rank.run(command)
        except BaseException as caught:
            error = caught
        self.check_usable()
        replies = self._collect(rank, error)
        _raise_failures(error, replies)
        return [list(results) for results in zip(mine, *(reply.results for reply in replies), strict=True)]

    def _collect(self, rank: Rank, error: BaseException | None) -> list[messages.Reply]:
        """Wait for all replies; what a signal handler raises meanwhile is raised when they have come."""
        interrupted = error is not None and not isinstance(error, Exception)
        try:
            return self._channel.collect(INTERRUPT_SECONDS if interrupted else None)
        except TimeoutError:
            if not interrupted:  # a signal handler's own
                self._recover(rank)
                raise
            self._break(SynkStateError("the run was interrupted, and not all workers came back; close() it"))
            raise error from None  # type: ignore[misc]
        except WorkerDied:
            raise
        except BaseException:
            self._recover(rank)
            raise

    def _recover(self, rank: Rank) -> None:
        """Take in the replies that are still to come, so that the next command does not find them."""
        if not self._channel.waiting:
            return
        rank.barrier.fail()
        try:
            if not self._channel.torn:
                self._channel.collect(INTERRUPT_SECONDS)
        except (TimeoutError, KeyboardInterrupt):
            pass
        if self._channel.waiting:
            self._break(SynkStateError("the run was interrupted in the middle of a command; close() it"))

    # --- messages ----------------------------------------------------------------------------------

    def post(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message to all workers."""
        self._send(lambda: self._channel.post(message, descriptor))

    def _send(self, send: Callable[[], None]) -> None:
        self.check_usable()
        with self._lock:
            self._posting = True
            try:
                send()
            except KeyboardInterrupt:
                self._break(SynkStateError("the run was interrupted while a message was sent; close() it"))
                raise
            finally:
                self._posting = False

    def release(self, message: Any) -> None:
        """Post a message when the run is next at rest; safe in finalizers, at any moment."""
        if self._closed or os.getpid() != self._pid:
            return
        self._released.append(message)
        if self._lock.acquire(blocking=False):
            try:
                if self._turn is None and not self._posting:
                    self._flush()
            finally:
                self._lock.release()

    def _flush(self) -> None:
        while self._released and not self._closed and self._broken is None:
            self.post(self._released.popleft())

    # --- the end -----------------------------------------------------------------------------------

    def on_death(self, rank: int) -> Any:
        """Raise WorkerDied; let the other ranks out of whatever they wait for."""
        process = self._crew.processes[rank - 1]
        process.wait(DEATH_SECONDS)
        phase = self._crew.control.phase(rank)
        error = WorkerDied(rank, process.pid, process.cause_of_death(), phase, self._turn or NOTHING)
        self._break(error)
        raise error

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        if self._rank is not None:
            self._rank.barrier.abandon()

    def close(self) -> bool:
        """Refuse everything from now on; return False if that was so already."""
        if self._closed or os.getpid() != self._pid:
            return False
        self._closed = True
        self._broken = None  # its traceback holds frames, and those hold shared memory
        self._channel.close()
        return True


def _raise_failures(error: BaseException | None, replies: Sequence[messages.Reply]) -> None:
    """Raise what ranks raised: ``error`` on rank 0, the others' in ``replies``."""
    if error is not None and not isinstance(error, Exception):
        raise error
    failures = [reply.failure for reply in replies if reply.failure is not None]
    if error is not None and not isinstance(error, Aborted):
        if not replies:
            raise error
        failures.insert(0, failure(0, error))
    if failures:
        raise remote_error(failures, n_ranks=len(replies) + 1) from error
    assert error is None, "a rank aborts only because another failed"
