"""Messages from the master to the workers, and their replies: plain values.

The master posts a message to all workers at once. Workers answer a `Command` only, each with one `Reply`. The
other messages prepare a later `Command`: workers read them in the order in which they were posted.

    Attach, Detach, Share, Build, Forget ...  ->  Command(steps)  ->  Reply
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from synk.values.errors import Failure
from synk.values.rows import split


class ArrayRef(NamedTuple):
    """An array in a segment that every rank has attached."""

    segment: int
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0  # bytes of the segment before it


class RowSpan(NamedTuple):
    """Rows ``start:stop`` of an array or, if ``listed``, entries ``start:stop`` of an array of row indices.

    If ``start`` and ``stop`` are `IN_COMMAND`, those of the `Command` count.
    """

    start: int
    stop: int
    listed: bool


# Stands for a row number that the command has, so that calls that differ in their rows only have equal steps:
# these need not be pickled again.
IN_COMMAND = -1


# --- Messages without an answer -------------------------------------------------------------


class Several(NamedTuple):
    """Several messages without an answer that are sent as one, and read in this order."""

    messages: tuple[Any, ...]


class File(NamedTuple):
    """A file that every machine opens by itself, with what shows whether it is the master's file."""

    path: str
    nbytes: int  # its length on the master's machine
    digest: bytes  # a digest of the start and the end of the file there


class Attach(NamedTuple):
    """Attach a new segment of shared memory, whose file descriptor is sent beside the message."""

    segment: int
    nbytes: int
    offset: int = 0  # bytes before the segment in the file of the descriptor
    writable: bool = True
    file: File | None = None  # the file of the user that the segment is a part of


class Fill(NamedTuple):
    """Bytes to copy into a segment, on machines that do not share its memory with the master."""

    segment: int
    offset: int
    bytes: Any  # array of uint8


class Detach(NamedTuple):
    """Detach a segment of shared memory."""

    segment: int


class Share(NamedTuple):
    """Make a rank's copy of a shared variable, with the value that the master has."""

    identity: int
    kind: type
    type: Any  # PyTensor Type
    name: str | None
    value: Any
    own: bool = False  # whether it is this rank's value already; else random states are split into streams


class Unshare(NamedTuple):
    """Drop a shared variable that nothing on the master refers to any more."""

    identity: int


class UseStorage(NamedTuple):
    """Keep a shared variable in shared memory: an array for each rank, in the memory of its machine."""

    identity: int
    arrays: tuple[ArrayRef, ...]


class LeaveStorage(NamedTuple):
    """Copy shared variables from shared memory into each rank's own memory."""

    identities: tuple[int, ...]


class Build(NamedTuple):
    """Keep a function, still symbolic: a `Compile`, or its first call, compiles it for the rank's device."""

    function: int
    spec: Any  # run.rank.program_spec.ProgramSpec


class Forget(NamedTuple):
    """Drop a function."""

    function: int


class DropObject(NamedTuple):
    """Drop an object that `synk.on_ranks` has made on the ranks."""

    number: int


class Close(NamedTuple):
    """Leave the command loop and exit."""


# --- Steps of a Command; those of collectives are in `synk.run.collectives` ----------------------------

PHASES = ("idle", "compiling", "computing", "in a collective")  # what a rank is doing, as errors name it
IDLE, COMPILING, COMPUTING, COLLECTIVE = range(len(PHASES))


class Readers(NamedTuple):
    """The ranks of one machine, as readers of arrays in shared memory."""

    ranks: range
    n_ranks: int  # of the run
    command_rows: tuple[int, int]  # the rows of the command, for spans with IN_COMMAND


class Part(NamedTuple):
    """Rows ``start:stop`` of an array in shared memory, or all of it."""

    ref: ArrayRef
    rows: tuple[int, int] | None = None


class Step:
    """One step of a command, which every rank runs; each subclass is a dataclass with slots."""

    __slots__: tuple[str, ...] = ()
    phase: ClassVar[int] = COLLECTIVE  # what errors say that the rank is doing while the step runs

    def run(self, rank: Any) -> Any:
        """Do this rank's part of the step; return its result for the master."""
        raise NotImplementedError

    def parts(self, readers: Readers) -> Iterator[Part]:
        """Yield the parts of arrays in shared memory that the ranks ``readers`` read in this step.

        By default they read all of every array that an attribute of the step refers to.
        """
        for name in self.__slots__:
            yield from parts_in(getattr(self, name), readers)

    def __reduce__(self) -> Any:
        slots = [name for kind in reversed(type(self).__mro__) for name in getattr(kind, "__slots__", ())]
        return type(self), tuple([getattr(self, name) for name in slots])


def parts_in(value: Any, readers: Readers) -> Iterator[Part]:
    """Yield the parts of arrays in shared memory that the ranks ``readers`` read.

    ``value`` is a step, an attribute of one, or a sequence of these.
    """
    if isinstance(value, ArrayRef):
        yield Part(value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from parts_in(item, readers)
    elif isinstance(value, Step):
        yield from value.parts(readers)


class Ahead(NamedTuple):
    """Rows to gather for the next call of a function, while this one computes."""

    token: int  # by which the next call refers to the gathered rows
    rows: RowSpan


@dataclass(slots=True)
class Call(Step):
    """Run one function on this rank's rows."""

    function: int
    inputs: tuple[ArrayRef, ...]  # scattered ones first, then broadcast ones
    batch: RowSpan | None  # the rows that are selected, and then scattered; None if nothing is scattered
    minibatch: tuple[bool, ...]  # per scattered input: whether it has the selected rows only, in their order
    shares: tuple[RowSpan, ...] | None  # per rank, rows of the sliceable shared variables
    indices: ArrayRef | None  # the index array of listed spans, int64
    num_slices: int
    gathered: int = 0  # token of the rows if the call before had them gathered ahead, else 0
    ahead: Ahead | None = None

    phase = COMPUTING

    def run(self, rank: Any) -> Any:
        return rank.call(self)

    def functions(self) -> tuple[int, ...]:
        """Return the numbers of all functions that the step runs."""
        return (self.function,)

    def parts(self, readers: Readers) -> Iterator[Part]:
        for ref, pairs in zip(self.inputs, self.minibatch, strict=False):
            yield Part(ref, self._rows(pairs, readers))
        yield from parts_in((self.inputs[len(self.minibatch) :], self.indices), readers)

    def _rows(self, pairs: bool, readers: Readers) -> tuple[int, int] | None:
        """Return the rows of a scattered input that the ranks ``readers`` read; None if it may be any rows.

        ``pairs`` is the input's entry in ``minibatch``.
        """
        if self.batch is None or ((self.batch.listed or self.ahead is not None) and not pairs):
            return None
        in_command = self.batch.start == IN_COMMAND
        start, stop = readers.command_rows if in_command else (self.batch.start, self.batch.stop)
        shares = [split(stop - start, readers.n_ranks)[rank] for rank in readers.ranks]
        before = 0 if pairs else start
        # A rank without rows computes on the row before its share: see `synk.run.rank.row_inputs.stand_in`.
        first = max(before + min(first if first < last else last - 1 for first, last in shares), 0)
        return first, max(before + shares[-1][1], first + 1)


@dataclass(slots=True)
class Compile(Step):
    """Compile functions ahead of their first call."""

    # Of each: the function, the number of slices of its calls, and graphs that rank 0 has rewritten for all.
    programs: tuple[tuple[int, int, dict[str, bytes]], ...]

    phase = COMPILING

    def run(self, rank: Any) -> Any:
        return rank.compile(self)


@dataclass(slots=True)  # which is made in half the steps of a NamedTuple
class Command:
    """One command: its steps run in order on every rank."""

    number: int
    steps: tuple[Any, ...]
    start: int = 0  # rows ``start:stop`` are those of spans with IN_COMMAND in the steps
    stop: int = 0


class Relay(NamedTuple):
    """A command for the ranks of another machine, with bytes that have changed in segments that they read.

    The steps are pickled by themselves, so that a rank that cannot unpickle them can say so in its reply.
    """

    fills: tuple[Fill, ...]
    number: int  # of the command
    steps: bytes  # the command's steps; commands with equal steps share the bytes
    start: int
    stop: int


@dataclass(slots=True, eq=False)
class Results:
    """The results of one rank's part of a `Call`."""

    values: list[Any]  # arrays, one per output, in the dtype they accumulate in
    weight: int  # rows they were computed from, or 1 where nothing is scattered


@dataclass(slots=True)
class Reply:
    """The end of one rank's part of a `Command`: its results, or its failure."""

    results: Sequence[Any]  # of each step; that of a Call is Results, or None if this rank had no rows
    failure: Failure | None
    aborted: bool = False  # whether this rank stopped because another rank failed
