"""Write nodes as one C function, which takes NumPy's arrays and returns new ones.

nodes in order -> RegionWriter: c_text of each, which asks for variables and says what its own are -> source
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.random.type import RandomType

from synk.compile.native.bit_generators import BITS
from synk.compile.regions.c_texts import c_text
from synk.compile.regions.frame import function_text
from synk.compile.regions.variables import Variables, type_of
from synk.compile.regions.walks import copy


class RegionWriter(Variables):
    """The text of a region in the making."""

    @contextmanager
    def block(self, count: str, graph: FunctionGraph) -> Iterator[None]:
        """Open a loop of ``count`` steps i, in each of which the nodes of a graph run.

        What is known in it is forgotten at its end. ``count`` may go on with a condition.
        """
        names = self._views, self._numbers, self._lengths
        saved = self._at, self._kept, self.uses
        self._views, self._numbers, self._lengths = (dict(table) for table in names)
        self._kept, self.uses = self._kept.union(graph.outputs), {}  # graphs may share their inputs
        self._loops = True
        watch = self._name("watch")
        self.line(f"Watch {watch} = {{1, 1, milliseconds()}};")
        self.line(f"for (long i = 0; i < {count}; i++) {{")
        self.line(f"if (!{watch}.left-- && !look(&{watch})) goto interrupted;")
        with self._room():
            yield
        self.line("}")
        self._views, self._numbers, self._lengths = names
        self._at, self._kept, self.uses = saved
        if not self.in_block:
            self.line("come_back();")

    def repeats(self) -> None:
        """Say that the last line takes nobody knows how many steps."""
        self._loops = True
        self._breathe()

    def _breathe(self) -> None:
        """Let the handlers of signals run, if it is time."""
        # As in Python, an interrupt may find some results written and others not.
        self._lines.append("    if (*worked > BREATH && !breathe()) goto interrupted;")

    def write_nodes(self, nodes: Sequence[Apply]) -> None:
        """Write nodes inside of a block; what they make is given back at its end."""
        for node in nodes:
            for variable in node.inputs:
                self._readers[variable] = len(self.nodes)
                self.uses.setdefault(variable, []).append(node)
        self._at = len(self.nodes)
        for node in nodes:
            if node not in self.done:
                self.line(f"/* {comment(node)} */")
                c_text(node.op, node, self)

    def write(self) -> str:
        """Return the text of the function, and of those that it calls."""
        for k, variable in enumerate(self.inputs):
            self._argument(k, variable)
        for k, node in enumerate(self.nodes):
            self._at = k
            if node not in self.done:
                self._lines.append(f"\n    /* {k}: {comment(node)} */")
                c_text(node.op, node, self)
            for place in self._places.given_back_after(k):
                self._give(place)
            if any(getattr(variable.type, "ndim", 0) for variable in node.inputs):
                self._breathe()
        self._lines.append("")
        for variable in self.outputs:
            if variable not in self._placed:
                self._return_copy(variable)
        numbers = len(self.inputs), len(self.outputs), len(self._places)
        return function_text(self._lines, *numbers, self._loops)

    def _argument(self, k: int, variable: Variable) -> None:
        if isinstance(variable.type, RandomType):
            self.declarations[BITS] = None
            self._numbers[variable] = f"g{k}"
            self.line(f"Bits *const g{k} = bits_of((void *)given[{k}]);")
            self.demand(f"g{k}")
            return
        kind, dtype = type_of(variable), variable.type.dtype
        number, ndim = np.dtype(dtype).num, getattr(variable.type, "ndim", 0)
        if ndim:
            self.line(f"const Array *const a{k} = given[{k}];")
            self.demand(f"is_plain(a{k}, {number}, {ndim}, ALIGNED)")
            for axis, length in enumerate(variable.type.shape):
                if length is not None:
                    self.demand(f"a{k}->shape[{axis}] == {length}")
            self._know(variable, self._view(dtype, ndim, f"a{k}->data", f"a{k}->shape", f"a{k}->strides"))
        else:
            self.line(f"const char *const a{k} = number_in(given[{k}], {number});")
            self.demand(f"a{k}")
            self.know_number(variable, f"*(const {kind} *)a{k}")

    def _return_copy(self, variable: Variable) -> None:
        """Copy a result that lies elsewhere, or is a number, to an array of its own; return a generator."""
        if isinstance(variable.type, RandomType):
            k = self.outputs.index(variable)
            self.line(f"r[{k}] = (Array *)given[{self._numbers[variable][1:]}]; Py_IncRef(r[{k}]);")
            return
        if getattr(variable.type, "ndim", 0):
            source = self.view(variable)
            copy(self, source, self.new(variable, source.shape))
        else:
            number, place = self.number(variable), self.new(variable, [])
            self.line(f"*({place.kind} *){place}.data = {number};")


def comment(node: Apply) -> str:
    """Return a short description of a node that a comment can hold."""
    return str(node.op).replace("/*", "/ *").replace("*/", "* /")[:100]
