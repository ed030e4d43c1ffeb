"""Messages between rank 0 and its agent in the MPI job: plain values.

Gather, Reduce (rank 0) -> Answer (agent); Fail, Share and Unshare are not answered
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Share(NamedTuple):
    """A segment in which arrays will be; its descriptor travels beside the message."""

    segment: int
    nbytes: int


class Unshare(NamedTuple):
    """Drop a segment."""

    segment: int


class Gather(NamedTuple):
    """Bring a payload to the meeting of all machines."""

    number: int  # of the question
    command: int
    payload: Any


class Reduce(NamedTuple):
    """Combine an array with those of all machines, where it is."""

    number: int
    command: int
    op: str
    segment: int
    offset: int  # bytes of the segment before it
    dtype: str
    size: int


class Fail(NamedTuple):
    """Tell the other machines that this one has failed in a command; a question that is open is dropped."""

    command: int


class Answer(NamedTuple):
    """The end of a meeting."""

    number: int
    result: Any  # the payloads of all machines, or None
    aborted: bool = False  # another machine has failed
    failure: str = ""  # the agent's own
