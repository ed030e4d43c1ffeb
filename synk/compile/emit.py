"""Write a graph as straight-line Python, one line per node, and run it.

Each value is deleted on the line after its last use, so a program holds no more memory than the
graph needs:

    def program(v0, v1):
        v2 = Dot22_1(v0, v1)
        del v0, v1
        v3 = Sum_2(v2)
        del v2
        return (asarray(v3), )

A traceback names a line, a line names a node: that is how an error finds its node.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import ModuleType, TracebackType
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from synk.compile.blame import blame, values_at
from synk.compile.buffers import accepts_out, assemble, open_buffer, part, settle
from synk.compile.destination import Buffer, Destinations, find_destinations
from synk.compile.dispatch.table import array_funcify

Observer = Callable[[Apply, Callable], Callable]


class Program:
    """A graph as a Python function.

    Call it with the values of the graph's inputs; it returns a tuple with those of its outputs.

    Attributes
    ----------
    source : str
        The Python text.
    host_nodes : tuple of Apply
        Nodes that run their Op's own Python implementation, those of inner graphs included.
    """

    _numbers = count()

    def __init__(self, source: str, namespace: dict[str, Any], nodes: dict[int, Apply], host_nodes: tuple):
        self.source = source
        self.host_nodes = host_nodes
        self._nodes = nodes  # by line, counted from 1
        exec(compile(source, f"<array program {next(self._numbers)}>", "exec"), namespace)
        self._function: Callable = namespace["program"]

    def __call__(self, *inputs):
        try:
            return self._function(*inputs)
        except Exception as error:
            self._blame(error)
            raise

    def failed_node(self, error: BaseException) -> Apply | None:
        """Return the node on whose line ``error`` arose, or None if it arose outside the program."""
        trace = self._own_trace(error)
        return None if trace is None else self._nodes.get(trace.tb_lineno)

    def _own_trace(self, error: BaseException) -> TracebackType | None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._function.__code__:
            trace = trace.tb_next
        return trace

    def _blame(self, error: BaseException) -> None:
        """Note on ``error`` which node failed, who built it and what it was given."""
        trace, node = self._own_trace(error), self.failed_node(error)
        if trace is None or node is None:
            return
        place = f"{list(self._nodes.values()).index(node)} of {len(self._nodes)}"
        line = self.source.splitlines()[trace.tb_lineno - 1]
        error.add_note(blame(node, place, values_at(trace, line)))


def emit(
    fgraph: FunctionGraph,
    xp: ModuleType,
    order: Sequence[Apply] | None = None,
    unpack: bool = False,
    observe: Observer | None = None,
    updates: Mapping[int, int] | None = None,
) -> Program:
    """Compile a graph to a :class:`Program`.

    Parameters
    ----------
    fgraph : FunctionGraph
        Rewritten and ready to run.
    xp : module
        Array module handed to the entries.
    order : sequence of Apply, optional
        Nodes in the order to run them; default ``fgraph.toposort()``, which puts the readers of an
        array before the node that destroys it.
    unpack : bool
        Let a graph with one output return it bare, as the entry of a node with one output does.
    observe : callable, optional
        ``observe(node, implementation)`` returns what runs in place of each implementation: the same
        values from the same arguments, with something measured or checked on the way.
    updates : mapping of int to int, optional
        Which output is the new value of which input: it is returned in the array of that input.
    """
    nodes = list(fgraph.toposort() if order is None else order)
    implementations = {node: array_funcify(node.op, node, xp) for node in nodes}
    found = find_destinations(
        nodes,
        fgraph.inputs,
        fgraph.outputs,
        updates or {},
        lambda node: accepts_out(implementations[node], xp),
    )
    writer = _Writer(fgraph, xp, found)
    for node, dead in zip(nodes, last_uses(nodes, [*fgraph.outputs, *found.settled.values()]), strict=True):
        implementation = implementations[node]
        writer.host_nodes += getattr(implementation, "host_nodes", ())
        if node in found.joins:
            implementation = assemble(found.joins[node].pieces)
        writer.node(node, implementation if observe is None else observe(node, implementation))
        writer.delete(dead)
    return writer.program(unpack)


class _Writer:
    """The text of a program in the making."""

    def __init__(self, fgraph: FunctionGraph, xp: ModuleType, found: Destinations):
        self.host_nodes: list[Apply] = []
        self._fgraph, self._xp, self._found = fgraph, xp, found
        self._names = _Names()
        self._lines = [f"def program({self._list(fgraph.inputs)}):"]
        self._node_at: dict[int, Apply] = {}
        self._buffers: dict[Buffer, str] = {}

    def node(self, node: Apply, implementation: Callable) -> None:
        """Add the line that runs a node."""
        out = self._destination(node)
        function = self._names.bind(implementation, label(node))
        self._add(f"{self._list(node.outputs)} = {function}({self._list(node.inputs)}{out})")
        self._node_at[len(self._lines)] = node

    def delete(self, variables: Sequence[Variable]) -> None:
        """Add a line that lets go of values."""
        if variables:
            self._add(f"del {self._list(variables)}")

    def program(self, unpack: bool) -> Program:
        """Add the last line and compile the text."""
        outputs = self._fgraph.outputs
        for k in self._found.copied:
            self._add(f"o{k} = {self._names[outputs[k]]}.copy()")
        results = [self._result(k, output) for k, output in enumerate(outputs)]
        bare = unpack and len(results) == 1
        self._add(
            f"return {results[0]}" if bare else f"return ({''.join(f'{result}, ' for result in results)})"
        )
        text = "\n".join(self._lines) + "\n"
        return Program(text, self._names.namespace, self._node_at, tuple(self.host_nodes))

    def _add(self, line: str) -> None:
        self._lines.append(f"    {line}")

    def _list(self, variables: Sequence[Variable]) -> str:
        return ", ".join([self._names[variable] for variable in variables])

    def _result(self, k: int, output: Variable) -> str:
        name = f"o{k}" if k in self._found.copied else self._names[output]
        if isinstance(output.type, TensorType) and output.type.ndim == 0:
            # Reductions and ufuncs make NumPy scalars of 0-d results; callers get arrays.
            name = f"{self._names.bind(self._xp.asarray, 'asarray')}({name})"
        target = self._found.settled.get(k)
        return (
            name if target is None else f"{self._names.bind(settle, 'settle')}({self._names[target]}, {name})"
        )

    def _destination(self, node: Apply) -> str:
        """Return the ``out=`` argument of a node that is given one, else nothing."""
        if node in self._found.joins:
            return f", out={self._buffer(self._found.joins[node].buffer)}"
        slot = self._found.slots.get(node)
        if slot is None:
            return ""
        buffer = self._buffer(slot.buffer)
        if slot.shape == slot.buffer.output.type.shape:
            return f", out={buffer}"
        return f", out={self._names.bind(part(slot.start, slot.stop, slot.shape), 'part')}({buffer})"

    def _buffer(self, buffer: Buffer) -> str:
        if buffer not in self._buffers:
            output, target = buffer
            opened = self._names.bind(open_buffer(self._xp, output.type.shape, output.type.dtype), "opened")
            name = self._buffers[buffer] = f"d{len(self._buffers)}"
            self._add(f"{name} = {opened}({'' if target is None else self._names[target]})")
        return self._buffers[buffer]


def label(node: Apply) -> str:
    """Return a short name of a node's Op; of a scalar Op's elementwise form, that of the scalar Op."""
    return type(node.op.scalar_op if isinstance(node.op, Elemwise) else node.op).__name__


def last_uses(nodes: Sequence[Apply], outputs: Sequence[Variable]) -> list[list[Variable]]:
    """For each node, the variables that nothing after it reads: inputs used last, outputs never used."""
    seen = set(outputs)
    dead: list[list[Variable]] = []
    for node in reversed(nodes):
        fresh = [
            v
            for v in dict.fromkeys([*node.inputs, *node.outputs])
            if v not in seen and not isinstance(v, Constant)
        ]
        seen.update(fresh)
        dead.append(fresh)
    return dead[::-1]


class _Names(dict):
    """Names of variables, made on first use; constants and implementations are bound in ``namespace``."""

    def __init__(self) -> None:
        super().__init__()
        self.namespace: dict[str, Any] = {}

    def __missing__(self, variable: Variable) -> str:
        constant = isinstance(variable, Constant)
        name = self[variable] = f"{'c' if constant else 'v'}{len(self)}"
        if constant:
            self.namespace[name] = variable.data
        return name

    def bind(self, function: Callable, name: str) -> str:
        """Return a name for ``function`` that is its own."""
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{len(self.namespace)}"
        self.namespace[name] = function
        return name
