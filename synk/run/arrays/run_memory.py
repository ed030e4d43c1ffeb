"""The memory of a run, as the master sees it: segments, buffers, and shared variables.

fork -> RunMemory ... restart -> begin_anew ... close: the script's shared variables are plain ones again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from synk.run.arrays.arena import Arena
from synk.run.arrays.lengths import RowsByRank
from synk.run.arrays.per_rank import PerRank
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.remembered import RememberedCommands
from synk.run.arrays.shared_storage import SharedStorage
from synk.run.arrays.shared_table import SharedTable
from synk.run.arrays.variables import RankVariables
from synk.run.device import Device
from synk.transport.memory.segments import SegmentTable, StagingBuffers


class Messenger(Protocol):
    """The sender of messages to all workers; `session.Commands` implements it."""

    def post(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message at once."""

    def release(self, message: Any) -> None:
        """Send a message as soon as no command is running; finalizers may call it, at any moment."""

    def release_later(self, message: Any) -> None:
        """Send a message together with the next one that `release` sends; finalizers may call it, too."""

    def growth(self) -> AbstractContextManager[None]:
        """Return a context in which a message may be sent in the middle of a command."""


class RunMemory:
    """The memory that the ranks of a run share, and the master's records of it, made in this order.

    Attributes
    ----------
    ranks : RanksByMachine
    remembered : RememberedCommands
        The commands that may be sent again as long as the memory they refer to stays in its place.
    segments : SegmentTable
        The segments of shared memory.
    staging : StagingBuffers
        Copies of the arrays that calls were given, which the next call of the same function overwrites.
    temporary : StagingBuffers
        Values on their way to shared variables. They may be as large as a data set, so they are freed at the
        end of each turn.
    arena : Arena
        Where collectives exchange arrays that are not in ``shared_storage``.
    variables : RankVariables
        Rank 0's shared variables, by identity.
    per_rank : PerRank
        The record of which shared variables differ between ranks.
    shared : SharedTable
        The record of which shared variables were sent to the workers.
    shared_storage : SharedStorage
        The record of which shared variables are stored in segments.
    lengths : RowsByRank
        The numbers of rows of shared variables on all ranks; ``ask_shapes`` asks the ranks for them.
    """

    def __init__(
        self,
        messenger: Messenger,
        ranks: RanksByMachine,
        device: Device,
        on_host: bool,
        ask_shapes: Callable[[tuple[int, ...]], Sequence[Sequence[Any]]],
    ):
        post = messenger.post
        self.ranks = ranks
        self.remembered = RememberedCommands()
        self.segments = segments = SegmentTable(post, messenger.release, not on_host and ranks.n_ranks > 1)
        self.staging = StagingBuffers(segments, self.remembered.drop_segment)
        self.temporary = StagingBuffers(segments)
        self.arena = Arena(segments, messenger.growth)
        self.variables = own = RankVariables(0, device.to_host, device.from_host)
        self.per_rank = PerRank(own, ranks)

        def to_host(value: Any) -> Any:
            device.bind()  # on any thread of the script
            return device.to_host(value)

        self.shared = SharedTable(
            post, messenger.release_later, self.per_rank, own, ranks, None if on_host else to_host
        )
        self.shared_storage = SharedStorage(
            segments, post, own, ranks, on_host, self.remembered.drop_variable
        )
        self.lengths = RowsByRank(own, ask_shapes)

    def drop_shared(self) -> None:
        """Free buffers and stored variables, after a rank failed to attach a segment of shared memory.

        The next ones are made in new segments, which all ranks may be able to attach.
        """
        self.remembered.drop_all()
        self.staging.drop_all()
        self.temporary.drop_all()
        self.shared_storage.separate_all()
        self.shared_storage.release_all()

    def leave_storage(self) -> None:
        """Copy rank 0's variables out of shared memory; each is stored there again at its next collective."""
        self.variables.leave_storage()
        self.shared_storage.release_all()

    def begin_anew(self) -> None:
        """Forget what depends on the former workers, before a restart starts others."""
        self.lengths.clear()
        self.arena.drop()
        self.remembered.drop_all()

    def close(self) -> None:
        """Free all shared memory; shared variables of the script keep rank 0's values, on the host."""
        self.variables.leave_device()
        self.variables.leave_storage()
        self.segments.close()
        self.shared.close(self.per_rank.now)
        self.remembered.drop_all()
