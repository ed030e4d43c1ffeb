"""One rank's link to the others through NCCL: made when first needed, given up when anything fails.

    link numbers of all ranks differ, or are 0 -> unique id through shared words -> connect, together
    launch -> mark on the stream -> look around until the device is through -> barrier

A rank that waits for the device sees failures and deaths as at a barrier. It aborts its link
then, and so do all others: after the launch, none leaves a collective before the barrier at its
end. The next collective makes a new link. All this is *unrun* on GPUs.

Imports ``comm.nccl_library`` and ``sync``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NoReturn

from synk.comm.nccl_library import ID_BYTES, Library
from synk.wire.sync import SLEEP_SECONDS, Barrier, ControlBlock

SPIN_SECONDS = 1e-3  # for which to ask the device again at once
PAUSE_SECONDS = 100e-6  # between looks after that
GRACE_SECONDS = 0.5  # in which a death is heard of that NCCL has noticed already

Launch = Callable[[Any, int], None]  # (NCCL's communicator, stream)


class Link:
    """The link of one rank.

    Parameters
    ----------
    rank : int
    control, barrier
        The run's shared words and this rank's barrier on them.
    library : Library

    Attributes
    ----------
    number : int
        Which link this is, the same on every rank that has it; 0 for none.
    """

    def __init__(self, rank: int, control: ControlBlock, barrier: Barrier, library: Library):
        self.number = 0
        self._rank = rank
        self._n_ranks = control.n_ranks
        self._barrier = barrier
        self._library = library
        self._header = control.header
        self._communicator: Any = None

    def ensure(self, numbers: Sequence[int]) -> None:
        """Make a new link unless all ranks have the same; every rank calls this at the same point.

        Parameters
        ----------
        numbers : sequence of int
            Of all ranks' links, as they told each other.
        """
        if self.number and len(set(numbers)) == 1:
            return
        self.abort()
        try:
            self._communicator = self._connected(self._share_id())
        except self._library.Error as error:
            self._explain(error, "connecting ranks")
        self.number = max(numbers) + 1

    def run(self, launch: Launch, what: str) -> None:
        """Launch part of a collective on the current stream; return once it is over on every rank.

        Raises
        ------
        Aborted
            If another rank failed meanwhile.
        RuntimeError
            If NCCL reports an error.
        """
        self.launch(launch, self._library.stream(), what)
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
        communicator, self._communicator, self.number = self._communicator, None, 0
        if communicator is not None:
            with suppress(self._library.Error):  # of a GPU that has failed
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
            f"NCCL failed in {what} on rank {self._rank}: {error}; set NCCL_DEBUG=WARN to have it say more"
        ) from error

    # --- connecting --------------------------------------------------------------------------------

    def _share_id(self) -> bytes:
        """Return rank 0's new id; its words are free between two barriers, since all have read them."""
        self._barrier.wait()
        if self._rank == 0:
            self._header(0)[: ID_BYTES // 8] = memoryview(self._library.unique_id()).cast("q")
        self._barrier.wait()
        return self._header(0)[: ID_BYTES // 8].tobytes()

    def _connected(self, unique_id: bytes) -> Any:
        """Connect on a thread of its own, since NCCL waits there for ranks that may never come."""
        made: list[Any] = []
        failed: list[BaseException] = []
        given_up = False

        def abort() -> None:
            with suppress(IndexError):  # whoever of two threads comes first
                made.pop().abort()

        def connect() -> None:
            try:
                made.append(self._library.connect(self._n_ranks, unique_id, self._rank))
            except BaseException as error:
                failed.append(error)
            if given_up:
                abort()

        thread = Thread(target=connect, name="synk NCCL link", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(SLEEP_SECONDS)
                if thread.is_alive():
                    self._barrier.look()
        except BaseException:
            given_up = True
            abort()
            raise
        if failed:
            raise failed[0]
        return made[0]
