"""Messages between rank 0 and its agent in the MPI job: plain values.

ReduceInPlace (rank 0) -> Reduced (agent); GiveUp, ShareSegment and DropSegment are not answered
"""

from __future__ import annotations

from typing import NamedTuple


class ShareSegment(NamedTuple):
    """Map a shared-memory segment, whose descriptor travels beside the message, for arrays in it."""

    segment: int
    nbytes: int


class DropSegment(NamedTuple):
    """Unmap a segment that `ShareSegment` announced."""

    segment: int


class ReduceInPlace(NamedTuple):
    """Combine an array in a shared segment with the arrays of all other machines, in place."""

    number: int  # of the reduction
    op: str
    segment: int
    offset: int  # bytes from the start of the segment to the array
    dtype: str
    size: int  # elements


class GiveUp(NamedTuple):
    """Abandon the reduction with this number, whether it is running or has not begun."""

    number: int


class Reduced(NamedTuple):
    """The answer to `ReduceInPlace`: the reduction with this number has ended."""

    number: int
    failure: str = ""  # the traceback if the agent has raised, else empty
