"""One rank's link to the others through NCCL: made when first needed, given up when anything fails.

    link numbers of all ranks differ, or are 0 -> unique id through shared words -> connect, together
    launch -> mark on the stream -> look around until the device is through -> barrier

A rank that waits for the device sees failures and deaths as at a barrier. It aborts its link
then, and so do all others: after the launch, none leaves a collective before the barrier at its
end. The next collective makes a new link. Where NCCL waits for other ranks within a call, when it connects,
the call is made on a thread that is watched. All this is *unrun* on GPUs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NoReturn

from synk.gpu.comm.nccl_library import ID_BYTES, Library, remedy, told
from synk.transport.commands.sync import SLEEP_SECONDS, Barrier

SPIN_SECONDS = 1e-3  # for which to ask the device again at once
PAUSE_SECONDS = 100e-6  # between looks after that
GRACE_SECONDS = 0.5  # in which a death is heard of that NCCL has noticed already

Launch = Callable[[Any, int], None]  # (NCCL's communicator, stream)
Peers = frozenset[tuple[str, int]]  # ("send", to whom), ("recv", from whom)


class Link:
    """The link of one rank; its ``number`` is the same on every rank that has it, 0 for none."""

    def __init__(self, barrier: Barrier, library: Library):
        self.number = 0
        self._barrier = barrier
        self._library = library
        self._header = barrier.control.header
        self._communicator: Any = None
        self._peers: Peers = frozenset()  # with whom messages have been exchanged on this link

    def ensure(self, numbers: Sequence[int]) -> None:
        """Make a new link unless the numbers of all ranks' links, as they told each other, are the same.

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

        ``what`` names the collective in errors; ``peers`` tell what it sends to which rank and receives
        from which. Raises Aborted if another rank failed meanwhile, and RuntimeError if NCCL reports an
        error.
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
        """Launch part of a collective on a stream, and do not wait for it; raises as `run`."""
        with self._giving_up(what):
            launch(self._communicator, stream)

    def complete(self, done: Callable[[], bool], what: str) -> None:
        """Return once what was launched is done here, and over on every rank; raises as `run`."""
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
        """Give up the link; what it still runs ends. Another process need not know."""
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
        # Told first: NCCL may keep this rank in its abort until the others abort too.
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
        """Raise what is behind an error of NCCL: a death, another rank's failure, or the error itself."""
        try:
            until = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < until:
                self._barrier.look()
                time.sleep(SLEEP_SECONDS / 10)
        finally:
            self._give_up()
        raise RuntimeError(
            f"NCCL failed in {what} on rank {self._barrier.rank}: {told(error)}; {remedy(os.environ)}"
        ) from error

    # --- connecting --------------------------------------------------------------------------------

    def _share_id(self) -> bytes:
        """Return rank 0's new id; its words are free between two barriers, since all have read them."""
        self._barrier.wait()
        if self._barrier.rank == 0:
            self._header(0)[: ID_BYTES // 8] = memoryview(self._library.unique_id()).cast("q")
        self._barrier.wait()
        return self._header(0)[: ID_BYTES // 8].tobytes()

    def _connected(self, unique_id: bytes) -> Any:
        """Return NCCL's communicator, once all ranks have come."""

        def connect() -> Any:
            return self._library.connect(self._barrier.n_ranks, unique_id, self._barrier.rank)

        return watched(connect, self._barrier.look, self._abort, SLEEP_SECONDS)

    def _launch_first(self, launch: Launch, stream: int) -> None:
        """Launch messages to or from ranks that NCCL connects with in this call, waiting for them there."""
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
            self._forget()  # it is in use, and given up after that
            raise
        if errors:
            raise errors[0]


def watched(
    call: Callable[[], Any], look: Callable[[], None], give_up: Callable[[Any], None], seconds: float
) -> Any:
    """Return the result of a call, or raise its error, or that of ``look`` if that comes first.

    For calls that wait for other ranks within NCCL, since these may never come. Its communicators block,
    and must not be aborted while a thread is inside: what a call that was left behind holds is given up
    once it returns, which it does when the other ranks give up theirs.

    ``look`` looks around once, every so many ``seconds``. ``give_up`` is called once a call that was left
    behind has ended, with its result, or None if it raised; on the thread of whoever comes to know of it.
    """
    results: list[Any] = []
    errors: list[BaseException] = []
    is_left = False

    def dispose() -> None:
        with suppress(IndexError):  # whichever of two threads comes first
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
