"""What the workers of a restarted run are born with, so that it goes on where the last one broke off.

    Session.restart -> Seed -> segments, variables, functions of a new worker

Nothing is sent where a new worker is a fork of the master: it finds all of this in its memory. To one that
the fork server made it goes by ``post``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from synk.arrays.variables import copy_of
from synk.memory.segments import SegmentTable
from synk.memory.shm import Segment
from synk.values import messages


@dataclass(frozen=True)
class Seed:
    """The state of all ranks; a run that starts has none.

    Parameters
    ----------
    mapped : mapping of int to Segment
        Segments by number, mapped in the master.
    shares : sequence of Share
        The shared variables, with copies of rank 0's values.
    values : mapping of int to sequence
        Committed values by identity, one per rank; variables without one start from rank 0's.
    storage : sequence of UseStorage
        Which variables are in shared memory.
    functions : sequence of Build
    """

    mapped: Mapping[int, Segment] = field(default_factory=dict)
    shares: Sequence[messages.Share] = ()
    values: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    storage: Sequence[messages.UseStorage] = ()
    functions: Sequence[messages.Build] = ()

    def attachments(self) -> Iterator[tuple[messages.Attach, int]]:
        """Yield what tells a worker of each segment that it has not inherited, and the descriptor."""
        for number, segment in self.mapped.items():
            message = messages.Attach(number, segment.nbytes, segment.offset, segment.writable)
            yield message, segment.descriptor

    def segments(self) -> SegmentTable:
        """Return a worker's table of segments."""
        return SegmentTable.holding(self.mapped)

    def messages(self, rank: int) -> Iterator[Any]:
        """Yield what a worker would have been sent: variables with its own values, then functions."""
        for share in self.shares:
            of_ranks = self.values.get(share.identity)
            value = share.value if of_ranks is None else of_ranks[rank]
            # A copy: ranks that have the same share one array, and the kept one may be read-only.
            yield share._replace(value=copy_of(value), own=of_ranks is not None)
        yield from self.storage
        yield from self.functions
