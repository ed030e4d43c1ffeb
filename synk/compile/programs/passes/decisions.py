"""The decisions that passes make about a program, as values: what is written where, and when.

Each pass writes its decisions, and may read those of earlier passes; `ProgramWriter` reads all of them. This
file imports none of the passes whose decisions it defines, so passes need not import each other.

    request -> ProgramPlan, filled in by destination, reuse, finish and others -> ProgramWriter
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph

from synk.compile.host_call import HostCall
from synk.compile.programs.passes.aliases import Aliases
from synk.compile.programs.passes.host_or_device import Placement
from synk.compile.programs.passes.lazy import Guard
from synk.compile.tables import accepts_out


class Buffer(NamedTuple):
    """The array into which an output is written."""

    output: Variable
    target: Variable | None  # an input whose array is used if it fits


class Slot(NamedTuple):
    """The part of a buffer that one node writes."""

    buffer: Buffer
    start: int  # element in C order, inclusive
    stop: int  # element in C order, exclusive
    shape: tuple[int, ...]


class JoinLayout(NamedTuple):
    """A join whose pieces are written into a buffer, each at its place, instead of being copied."""

    buffer: Buffer
    pieces: tuple[tuple[int, int, bool], ...]  # start, stop, and whether a node has written it there


class Destinations(NamedTuple):
    """The places into which nodes write results, instead of allocating arrays."""

    slots: dict[Apply, Slot]
    joins: dict[Apply, JoinLayout]
    update_targets: dict[int, Variable]  # output -> input whose array is to hold it
    copied: set[int]  # outputs that may share memory with an array that is to hold another one


# By elementwise node: for each output the input that it overwrites, or None.
Reuse = dict[Apply, list[Variable | None]]


class PieceCopy(NamedTuple):
    """The copy of a piece of a join into the buffer, as soon as the piece is made."""

    buffer: Buffer
    start: int
    stop: int
    piece: Variable


class Finish(NamedTuple):
    """The announcement that all elements of a buffer from ``start`` to its end are final."""

    buffer: Buffer
    start: int
    variable: Variable  # the shared variable whose new value they are


# By node: what is done right after it has run.
Actions = dict[Apply, list[PieceCopy | Finish]]


@dataclass
class ProgramPlan:
    """A request for a program, and the decisions about it, which passes add one by one.

    The parameters are those of `synk.compile.programs.emit.emit`; ``dtype`` is its ``narrow``. A decision has
    no value before its pass has run: `synk.compile.programs.passes.plan` says in which order they run.
    """

    fgraph: FunctionGraph
    xp: ModuleType
    order: Sequence[Apply]
    updates: Mapping[int, int]
    inputs_on_host: Collection[int] = ()
    outputs_on_host: Collection[int] = ()
    outputs_anywhere: Collection[int] = ()
    dtype: str | None = None
    announced: bool = False

    nodes: list[Apply] = field(init=False)  # in the order they run
    guards: Mapping[Apply, Guard] = field(init=False)  # of the nodes that do not always run
    placed: Placement = field(init=False)  # casts included
    stored: Collection[Variable] = field(init=False, default=())  # values that are kept in 16 bits
    aliases: Aliases = field(init=False)
    destinations: Destinations = field(init=False)
    reuse: Reuse = field(init=False)
    actions: Actions = field(init=False, default_factory=dict)  # what is done after which node

    def target(self, variable: Variable) -> Variable:
        """Return the copy of an input, on host or device, into whose array its new value is written."""
        return self.placed.targets.get(variable, variable)

    def accepts(self, node: Apply) -> bool:
        """Tell whether a node's implementation takes ``out=``, arrays to write its results into."""
        on_host = node.outputs[0] in self.placed.on_host
        return not on_host and accepts_out(self.placed.implementations[node], self.xp)

    def owns(self, value: Variable) -> bool:
        """Tell whether a computed value is an array that the program allocated, and so may overwrite."""
        on_host = value in self.placed.on_host
        return not on_host and not isinstance(self.placed.implementations[value.owner], HostCall)
