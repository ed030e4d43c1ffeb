"""Messages between rank 0 and its agent in the MPI job: plain values.

Reduce (rank 0) -> Reduced (agent); GiveUp, Share and Unshare are not answered
"""

from __future__ import annotations

from typing import NamedTuple


class ShareSegment(NamedTuple):
    """A segment in which arrays will be; its descriptor travels beside the message."""

    segment: int
    nbytes: int


class DropSegment(NamedTuple):
    """Drop a segment."""

    segment: int


class ReduceInPlace(NamedTuple):
    """Combine an array with those of all machines, where it is."""

    number: int  # of the reduction
    op: str
    segment: int
    offset: int  # bytes of the segment before it
    dtype: str
    size: int


class GiveUp(NamedTuple):
    """Leave out a reduction, or leave it."""

    number: int


class Reduced(NamedTuple):
    """The end of a reduction."""

    number: int
    failure: str = ""  # the agent's own
