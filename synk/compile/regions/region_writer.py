"""Write nodes as one C function, which takes NumPy's arrays and returns new ones.

    nodes in order -> RegionWriter: the c_text of each node adds its lines -> source

A writer has parts, of which each entry of `c_text` uses those that it needs:

    text       adds lines of C, and names numbers, lengths, views and functions
    liveness   knows which nodes read a variable, and which is the last
    memory     takes memory of the region's own, and gives it back
    variables  knows the name of each variable in the text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.random.type import RandomType

from synk.compile.native.bit_generators import BITS
from synk.compile.programs.elementwise.dialect import native_dialect
from synk.compile.regions.c_texts import c_text
from synk.compile.regions.frame import function_text
from synk.compile.regions.lines import Text
from synk.compile.regions.liveness import Liveness
from synk.compile.regions.memory import OwnMemory
from synk.compile.regions.variables import Variables, type_of
from synk.compile.regions.walks import copy


class RegionText(NamedTuple):
    """The C text of a region."""

    source: str  # the function
    declarations: tuple[str, ...]  # what stands before it: the functions that it calls
    fails_late: bool  # whether it may give up a call after it has written to a result's array


class RegionWriter:
    """A region whose C text is being written.

    Parameters
    ----------
    nodes : sequence of Apply
        In the order they run.
    inputs, outputs : sequence of Variable
        The variables that the region takes and returns.

    Attributes
    ----------
    dialect : Dialect
        C, with the elementary functions of this machine.
    done : set of Apply
        Nodes that need no lines, because an earlier node's lines compute them too.
    """

    def __init__(self, nodes: Sequence[Apply], inputs: Sequence[Variable], outputs: Sequence[Variable]):
        self.dialect = native_dialect()
        self.text = Text()
        self.liveness = Liveness(nodes, outputs)
        self.memory = OwnMemory(self.text, self.liveness)
        self.variables = Variables(self.text, self.liveness, self.memory, self.dialect, outputs, len(inputs))
        self.done: set[Apply] = set()
        self._nodes, self._inputs, self._outputs = nodes, inputs, outputs

    @contextmanager
    def block(self, count: str, graph: FunctionGraph) -> Iterator[None]:
        """Open a loop of ``count`` steps, in each of which the nodes of a graph run; see `Text.steps`.

        Behind the loop the names in it are forgotten. Each step gives back the memory that it has taken.
        """
        with (
            self.liveness.loop(graph.outputs),
            self.variables.scope(),
            self.text.steps(count),
            self.memory.room(),
        ):
            yield

    def write_nodes(self, nodes: Sequence[Apply]) -> None:
        """Write the nodes of an open loop's graph."""
        self.liveness.enter(nodes)
        for node in nodes:
            if node not in self.done:
                self.text.line(f"/* {comment(node)} */")
                c_text(node.op, node, self)

    def write(self) -> RegionText:
        """Write all nodes, and return the text; raise NoText if one of them cannot be written."""
        for k, variable in enumerate(self._inputs):
            self._argument(k, variable)
        for k, node in enumerate(self._nodes):
            self.liveness.at = k
            if node not in self.done:
                self.text.lines.append(f"\n    /* {k}: {comment(node)} */")
                c_text(node.op, node, self)
            for place in self.memory.places.given_back_after(k):
                self.memory.give(place)
            if any(getattr(variable.type, "ndim", 0) for variable in node.inputs):
                self.text.breathe()
        self.text.lines.append("")
        for k, variable in enumerate(self._outputs):
            if variable not in self.variables.placed:
                self._return_copy(k, variable)
        numbers = len(self._inputs), len(self._outputs), len(self.memory.places)
        source = function_text(self.text.lines, *numbers, self.text.loops)
        return RegionText(source, tuple(self.text.declarations), self.text.fails_late)

    def _argument(self, k: int, variable: Variable) -> None:
        """Add the lines that read argument ``k``: NumPy's array or scalar, or a generator."""
        text, bind = self.text, self.variables.bind
        if isinstance(variable.type, RandomType):
            text.declarations[BITS] = None
            text.line(f"Bits *const g{k} = bits_of((void *)given[{k}]);")
            text.demand(f"g{k}")
            bind(variable, f"g{k}")
            return
        kind, dtype = type_of(variable), variable.type.dtype
        number, ndim = np.dtype(dtype).num, getattr(variable.type, "ndim", 0)
        if ndim:
            text.line(f"const Array *const a{k} = given[{k}];")
            text.demand(f"is_plain(a{k}, {number}, {ndim}, ALIGNED)")
            for axis, length in enumerate(variable.type.shape):
                if length is not None:
                    text.demand(f"a{k}->shape[{axis}] == {length}")
            bind(variable, text.view_of_arrays(dtype, ndim, f"a{k}->data", f"a{k}->shape", f"a{k}->strides"))
        else:
            text.line(f"const char *const a{k} = number_in(given[{k}], {number});")
            text.demand(f"a{k}")
            self.variables.bind_number(variable, f"*(const {kind} *)a{k}")

    def _return_copy(self, k: int, variable: Variable) -> None:
        """Copy a result that is a number, or lies in other memory, to its own array; return a generator."""
        variables = self.variables
        if isinstance(variable.type, RandomType):
            # Its name is that of the argument it came as, ``g3``.
            self.text.line(f"r[{k}] = (Array *)given[{variables.number(variable)[1:]}]; Py_IncRef(r[{k}]);")
        elif getattr(variable.type, "ndim", 0):
            source = variables.view(variable)
            copy(self.text, source, variables.new(variable, source.shape))
        else:
            number, place = variables.number(variable), variables.new(variable, [])
            self.text.line(f"*({place.kind} *){place}.data = {number};")


def comment(node: Apply) -> str:
    """Return a short description of a node, for a comment in C."""
    return str(node.op).replace("/*", "/ *").replace("*/", "* /")[:100]
