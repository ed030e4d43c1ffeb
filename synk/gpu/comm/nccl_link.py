"""One rank's link to the others through NCCL: made when first needed, and aborted when anything fails.

    link numbers of all ranks differ, or are 0 -> unique id through shared words -> connect, together
    launch -> mark on the stream -> check for failures until the device is done -> barrier

A rank that waits for the device checks meanwhile whether another rank has failed or died, as at a barrier,
and aborts its link if so. All other ranks do the same, because after the launch no rank leaves a collective
before the barrier at its end. The next collective makes a new link. While NCCL connects ranks, it waits for
them within a call; such a call is made on a thread of its own, so that the rank can still check. *Unrun* on
GPUs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NoReturn

from synk.gpu.comm.nccl_library import ID_BYTES, Library, error_text, remedy
from synk.transport.commands.sync import SLEEP_SECONDS, Barrier

SPIN_SECONDS = 1e-3  # for so long, the device is asked again and again without a pause
PAUSE_SECONDS = 100e-6  # between two questions after that
GRACE_SECONDS = 0.5  # after an error of NCCL: how long to wait for news of the death that may have caused it

Launch = Callable[[Any, int], None]  # (NCCL's communicator, stream)
Peers = frozenset[tuple[str, int]]  # ("send", to whom), ("recv", from whom)


class Link:
    """The link of one rank. All ranks of a link have it under the same ``number``; 0 means no link."""

    def __init__(self, barrier: Barrier, library: Library):
        self.number = 0
        self._barrier = barrier
        self._library = library
        self._header = barrier.control.header
        self._communicator: Any = None
        self._peers: Peers = frozenset()  # with whom messages have been exchanged on this link

    def ensure(self, numbers: Sequence[int]) -> None:
        """Make a new link, unless ``numbers``, those of all ranks' links, say that all share one.

        Every rank calls this at the same point.
        """
        if self.number and len(set(numbers)) == 1:
            return
        self.abort()
        try:
            self._communicator = self._connected(self._share_id())
        except self._library.Error as error:
            self._explain(error, "connecting ranks")
        self.number = max(numbers) + 1

    def run(self, launch: Launch, what: str, peers: Peers = frozenset()) -> None:
        """Launch part of a collective on the current stream; return once it is over on every rank.

        ``what`` names the collective in errors; ``peers`` lists the ranks that it sends messages to or
        receives them from. Raise Aborted if another rank failed meanwhile, and RuntimeError if NCCL reports
        an error.
        """
        stream = self._library.stream()
        if peers <= self._peers:
            self.launch(launch, stream, what)
        else:
            with self._giving_up(what):
                self._launch_first(launch, stream)
            self._peers |= peers
        self.complete(self._library.mark(), what)

    def launch(self, launch: Launch, stream: int, what: str) -> None:
        """Launch part of a collective on a stream, without waiting; raise the errors of `run`."""
        with self._giving_up(what):
            launch(self._communicator, stream)

    def complete(self, done: Callable[[], bool], what: str) -> None:
        """Return once the launched work is done here, and on every rank; raise the errors of `run`."""
        with self._giving_up(what):
            self._wait(done)
            self._barrier.wait()

    @contextmanager
    def _giving_up(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._library.Error as error:
            self._explain(error, what)
        except BaseException:
            self._give_up()
            raise

    def abort(self) -> None:
        """Abort the link, which ends its work on the device; other processes need not be told."""
        communicator = self._communicator
        self._forget()
        self._abort(communicator)

    def _forget(self) -> None:
        self._communicator, self.number, self._peers = None, 0, frozenset()

    def _abort(self, communicator: Any) -> None:
        if communicator is not None:
            with suppress(*self._library.Error):  # of a GPU that has failed
                communicator.abort()  # destroy would wait for the other ranks, which may be gone

    def _give_up(self) -> None:
        # The others are told first: NCCL may not return from the abort before they abort, too.
        self._barrier.fail()
        self.abort()

    def _wait(self, done: Callable[[], bool]) -> None:
        spun = time.monotonic() + SPIN_SECONDS
        while not done():
            if time.monotonic() >= spun:
                self._communicator.check_async_error()
                self._barrier.look()
                time.sleep(PAUSE_SECONDS)

    def _explain(self, error: Exception, what: str) -> NoReturn:
        """Raise the cause of an error of NCCL: a rank's death or failure, or else the error itself."""
        try:
            until = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < until:
                self._barrier.look()
                time.sleep(SLEEP_SECONDS / 10)
        finally:
            self._give_up()
        raise RuntimeError(
            f"NCCL failed in {what} on rank {self._barrier.rank}: {error_text(error)}; {remedy(os.environ)}"
        ) from error

    # --- connecting --------------------------------------------------------------------------------

    def _share_id(self) -> bytes:
        """Return the id that rank 0 makes and shares; between two barriers, nobody else uses these words."""
        self._barrier.wait()
        if self._barrier.rank == 0:
            self._header(0)[: ID_BYTES // 8] = memoryview(self._library.unique_id()).cast("q")
        self._barrier.wait()
        return self._header(0)[: ID_BYTES // 8].tobytes()

    def _connected(self, unique_id: bytes) -> Any:
        """Return NCCL's communicator, once all ranks have called this."""

        def connect() -> Any:
            return self._library.connect(self._barrier.n_ranks, unique_id, self._barrier.rank)

        return watched(connect, self._barrier.look, self._abort, SLEEP_SECONDS)

    def _launch_first(self, launch: Launch, stream: int) -> None:
        """Launch the first messages between ranks: NCCL connects them in this call, and waits for them."""
        communicator = self._communicator
        errors: list[BaseException] = []

        def messages() -> None:
            try:
                with self._library.on_device():
                    launch(communicator, stream)
            except BaseException as error:
                errors.append(error)

        try:
            watched(messages, self._barrier.look, lambda _: self._abort(communicator), SLEEP_SECONDS)
        except BaseException:
            self._forget()  # the thread still uses it; `watched` aborts it once the thread returns
            raise
        if errors:
            raise errors[0]


def watched(
    call: Callable[[], Any], look: Callable[[], None], give_up: Callable[[Any], None], seconds: float
) -> Any:
    """Run ``call`` on a thread; return its result, or raise its error, or an error of ``look`` before that.

    This is for calls that wait for other ranks within NCCL, since these may never come. A communicator must
    not be aborted while a thread is inside a call of it. So if ``look`` raises, the thread is left behind,
    and its communicator is aborted once the call returns, as it does when the other ranks abort theirs.

    ``look`` checks for failures, and is called every ``seconds``. ``give_up`` is called after a thread was
    left behind and its call has ended, with the call's result, or None if it raised; on either thread.
    """
    results: list[Any] = []
    errors: list[BaseException] = []
    is_left = False

    def dispose() -> None:
        with suppress(IndexError):  # the other thread has disposed of the result already
            give_up(results.pop())

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
            results.append(None)
        if is_left:
            dispose()

    thread = Thread(target=work, name="synk NCCL link", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(seconds)
            if thread.is_alive():
                look()
    except BaseException:
        is_left = True
        dispose()
        raise
    if errors:
        raise errors[0]
    return results[0]
