"""Messages from the master to the workers, and their replies: plain values.

The master posts a message to all workers at once. Only `Command` is answered, by one `Reply` per
worker; the others prepare the ground for a later `Command` and are read in the order posted.

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
    """Rows ``start:stop``, of an array or, where ``listed``, of the call's index array."""

    start: int  # or TOLD
    stop: int  # or TOLD
    listed: bool


TOLD = -1  # instead of a row: the command tells it, so that calls with other rows are the same steps


# --- Messages without an answer -------------------------------------------------------------


class Several(NamedTuple):
    """Messages of this kind that travel as one, in their order."""

    messages: tuple[Any, ...]


class File(NamedTuple):
    """A file that every machine opens for itself."""

    path: str
    nbytes: int  # its length on the master's machine
    digest: bytes  # of its ends there


class Attach(NamedTuple):
    """A new segment; its descriptor travels beside the message."""

    segment: int
    nbytes: int
    offset: int = 0  # bytes before it, in what the descriptor means
    writable: bool = True
    file: File | None = None  # that it is a part of


class Fill(NamedTuple):
    """Bytes of a segment, for machines that do not share its memory."""

    segment: int
    offset: int
    bytes: Any  # array of uint8


class Detach(NamedTuple):
    """Drop a segment."""

    segment: int


class Share(NamedTuple):
    """A shared variable and the master's value of it."""

    identity: int
    kind: type
    type: Any  # PyTensor Type
    name: str | None
    value: Any
    own: bool = False  # each rank's own already, so a random state is not split into streams


class Unshare(NamedTuple):
    """Drop a shared variable that nothing on the master refers to any more."""

    identity: int


class UseStorage(NamedTuple):
    """Keep a shared variable in shared memory: an array for each rank, in the memory of its machine."""

    identity: int
    arrays: tuple[ArrayRef, ...]


class Build(NamedTuple):
    """A function, still symbolic: every rank compiles it for its own device."""

    function: int
    spec: Any  # rank.spec.ProgramSpec


class Forget(NamedTuple):
    """Drop a function."""

    function: int


class DropObject(NamedTuple):
    """Drop an object that `synk.on_ranks` has made."""

    number: int


class Close(NamedTuple):
    """Leave the command loop and exit."""


# --- Steps of a Command; those of collectives are in `synk.run.collectives` ----------------------------

PHASES = ("idle", "compiling", "computing", "in a collective")  # what a rank is doing, as others see it
IDLE, COMPILING, COMPUTING, COLLECTIVE = range(len(PHASES))


class Readers(NamedTuple):
    """Ranks that read arrays in shared memory, those of one machine."""

    ranks: range
    n_ranks: int  # of the run
    told: tuple[int, int]  # the rows that spans with TOLD in them mean


class Part(NamedTuple):
    """Rows ``start:stop`` of an array in shared memory, or all of it."""

    ref: ArrayRef
    rows: tuple[int, int] | None = None


class Step:
    """A part of a command, which travels: a slotted dataclass that every rank runs."""

    __slots__: tuple[str, ...] = ()
    phase: ClassVar[int] = COLLECTIVE  # what the rank is said to be doing meanwhile

    def run(self, rank: Any) -> Any:
        """Do a rank's part of it, and return what goes to the master."""
        raise NotImplementedError

    def parts(self, readers: Readers) -> Iterator[Part]:
        """Yield what some ranks read of the arrays that it refers to: all, unless a step knows better."""
        for name in self.__slots__:
            yield from parts_in(getattr(self, name), readers)

    def __reduce__(self) -> Any:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


def parts_in(value: Any, readers: Readers) -> Iterator[Part]:
    """Yield what some ranks read of the arrays that steps refer to, or what steps hold."""
    if isinstance(value, ArrayRef):
        yield Part(value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from parts_in(item, readers)
    elif isinstance(value, Step):
        yield from value.parts(readers)


class Ahead(NamedTuple):
    """Rows to gather for the next call of a function, while this one computes."""

    token: int  # by which that call asks for them
    rows: RowSpan


@dataclass(slots=True)
class Call(Step):
    """Run one function on this rank's rows."""

    function: int
    inputs: tuple[ArrayRef, ...]  # scattered ones first, then broadcast ones
    batch: RowSpan | None  # rows picked before scattering; None where nothing is scattered
    minibatch: tuple[bool, ...]  # per scattered input: its row i pairs with the i-th selected row
    shares: tuple[RowSpan, ...] | None  # per rank, rows of the sliceable shared variables
    indices: ArrayRef | None  # int64, what listed spans refer to
    num_slices: int
    gathered: int = 0  # token of the rows if a call before had them gathered ahead
    ahead: Ahead | None = None

    phase = COMPUTING

    def run(self, rank: Any) -> Any:
        return rank.call(self)

    def parts(self, readers: Readers) -> Iterator[Part]:
        for ref, pairs in zip(self.inputs, self.minibatch, strict=False):
            yield Part(ref, self._rows(pairs, readers))
        yield from parts_in((self.inputs[len(self.minibatch) :], self.indices), readers)

    def _rows(self, pairs: bool, readers: Readers) -> tuple[int, int] | None:
        """Return the rows that some ranks read of a scattered input; None for any."""
        if self.batch is None or ((self.batch.listed or self.ahead is not None) and not pairs):
            return None
        start, stop = readers.told if self.batch.start == TOLD else (self.batch.start, self.batch.stop)
        shares = [split(stop - start, readers.n_ranks)[rank] for rank in readers.ranks]
        before = 0 if pairs else start
        # A rank without rows has the one before stand in: see `synk.run.rank.row_inputs.stand_in`.
        first = max(before + min(first if first < last else last - 1 for first, last in shares), 0)
        return first, max(before + shares[-1][1], first + 1)


@dataclass(slots=True)
class Compile(Step):
    """Compile functions ahead of their first call."""

    # Functions, in how many slices each will be called, and what rank 0 has rewritten of it for all ranks.
    programs: tuple[tuple[int, int, dict[str, bytes]], ...]

    phase = COMPILING

    def run(self, rank: Any) -> Any:
        return rank.compile(self)


@dataclass(slots=True)  # made in half the steps of a tuple
class Command:
    """One command: its steps run in order on every rank."""

    number: int
    steps: tuple[Any, ...]
    start: int = 0  # the rows that spans with TOLD in them mean
    stop: int = 0


class Relay(NamedTuple):
    """A command in a frame, with what has changed in the segments that another machine's ranks read.

    Its steps are pickled by themselves: a rank that cannot unpickle them says so in its reply.
    """

    fills: tuple[Fill, ...]
    number: int  # of the command
    steps: bytes  # its steps, pickled once as long as they are the same
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

    results: Sequence[Any]  # per step; of a Call Results, or None where this rank had no rows
    failure: Failure | None
    aborted: bool = False  # stopped because another rank failed
