"""Write a graph as straight-line Python, one line per node, and run it.

Each value is deleted on the line after its last use, so a program holds no more memory than the
graph needs:

    def program(v0, v1):
        v2 = Dot22_1(v0, v1)
        del v0, v1
        v3 = Sum_2(v2)
        del v2
        return (asarray(v3), )

Nodes that only one branch of an ``IfElse`` needs stand in an ``if`` block.

A traceback names a line, a line names a node: that is how an error finds its node.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from synk.compile.blame import blame, values_at
from synk.compile.buffers import accepts_out, assemble, open_buffer, part, settle
from synk.compile.destination import Buffer, Destinations, Memory, find_destinations
from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.table import DEVICE, HOST, array_funcify
from synk.compile.lazy import Guard, conditions_of, plan_lazy
from synk.compile.place import Placement, Step, place, stay
from synk.compile.reuse import Reuse, find_reuse
from synk.compile.transfer import CROSSINGS, Transfers

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
    transfers : Transfers
        Arrays that one call sends from the host to the device and back, inner graphs apart.
    device_inputs : sequence of int
        Inputs that are read on the device.
    result_sides : tuple of str
        Where each output is.
    """

    _numbers = count()
    transfers = Transfers(0, 0)
    device_inputs: Sequence[int] = ()
    result_sides: tuple[str, ...] = ()

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
    given: Collection[int] = (),
    fetched: Collection[int] = (),
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
    given, fetched : collection of int
        Inputs that come from the host and outputs that go there; see `synk.compile.place.place`. With
        NumPy they make no difference.
    """
    nodes, guards = plan_lazy(fgraph, fgraph.toposort() if order is None else order)
    updates = updates or {}

    def implement(node, side):
        return array_funcify(node.op, node, np if side == HOST else xp)

    placed = (
        stay(nodes, fgraph.outputs, implement)
        if xp is np
        else place(
            nodes, fgraph.inputs, fgraph.outputs, implement, given=given, fetched=fetched, updates=updates
        )
    )
    implementations = placed.implementations

    def suits(node):
        return node.outputs[0] not in placed.on_host and accepts_out(implementations[node], xp)

    def owned(value):
        return value not in placed.on_host and not isinstance(implementations[value.owner], HostCall)

    memory = Memory(nodes)
    found = find_destinations(nodes, fgraph.inputs, fgraph.outputs, updates, suits, memory, placed.on_host)
    reuse = find_reuse(nodes, fgraph.outputs, memory, found, suits, owned)
    writer = _Writer(fgraph, xp, found, placed, reuse)
    kept = [*placed.results, *[placed.targets.get(v, v) for v in found.settled.values()]]
    conditions = conditions_of(placed.steps)
    kept += [variable for step in placed.constants for variable in step.outputs]
    for step, dead in zip(placed.steps, last_uses(placed.steps, kept), strict=True):
        node = step.node
        if node is None:
            writer.crossing(step)
        else:
            implementation = implementations[node]
            writer.host_nodes += getattr(implementation, "host_nodes", (node,) * (node in placed.moved))
            if node in found.joins:
                implementation = assemble(found.joins[node].pieces)
            writer.under([(conditions[variable], true) for variable, true in guards.get(node, ())])
            writer.node(step, implementation if observe is None else observe(node, implementation))
        writer.delete(dead)
    return writer.program(unpack)


class _Writer:
    """The text of a program in the making."""

    def __init__(
        self, fgraph: FunctionGraph, xp: ModuleType, found: Destinations, placed: Placement, reuse: Reuse
    ):
        self.host_nodes: list[Apply] = []
        self._reuse = reuse
        self._fgraph, self._xp, self._found, self._placed = fgraph, xp, found, placed
        self._names = _Names()
        self._lines = [f"def program({self._list(fgraph.inputs)}):"]
        self._node_at: dict[int, Apply] = {}
        self._buffers: dict[Buffer, str] = {}
        self._guard: Guard = []
        self._made: set[Variable] = set()  # in the open block, and still there
        self._lost: list[Variable] = []  # made before the open block, deleted in it
        for step in placed.constants:
            value = CROSSINGS[step.to](step.inputs[0].data, xp)
            self._names[step.outputs[0]] = self._names.bind(value, "c")

    def under(self, guard: Guard) -> None:
        """Open the block of the nodes that run under ``guard``, unless it is open."""
        if guard == self._guard:
            return
        self._leave()
        if guard:
            tests = [f"{'' if true else 'not '}{self._names[condition]}" for condition, true in guard]
            self._add(f"if {' and '.join(tests)}:")
        self._guard = guard

    def node(self, step: Step, implementation: Callable) -> None:
        """Add the line that runs a node."""
        node: Any = step.node
        out = self._destination(node, dict(zip(node.inputs, step.inputs, strict=True)))
        function = self._names.bind(implementation, label(node))
        self._add(f"{self._list(node.outputs)} = {function}({self._list(step.inputs)}{out})")
        self._node_at[len(self._lines)] = node
        self._make(step.outputs)

    def crossing(self, step: Step) -> None:
        """Add the line that brings a value to the other side."""
        function = self._names.bind(partial(CROSSINGS[step.to], xp=self._xp), f"to_{step.to}")
        self._add(f"{self._list(step.outputs)} = {function}({self._list(step.inputs)})")
        self._make(step.outputs)

    def delete(self, variables: Sequence[Variable]) -> None:
        """Add a line that lets go of values."""
        if variables:
            self._add(f"del {self._list(variables)}")
        if self._guard:
            self._lost += [variable for variable in variables if variable not in self._made]
            self._made.difference_update(variables)

    def program(self, unpack: bool) -> Program:
        """Add the last line and compile the text."""
        self._leave()
        outputs = self._placed.results
        for k in self._found.copied:
            self._add(f"o{k} = {self._names[outputs[k]]}.copy()")
        results = [self._result(k, output) for k, output in enumerate(outputs)]
        bare = unpack and len(results) == 1
        self._add(
            f"return {results[0]}" if bare else f"return ({''.join(f'{result}, ' for result in results)})"
        )
        text = "\n".join(self._lines) + "\n"
        program = Program(text, self._names.namespace, self._node_at, tuple(self.host_nodes))
        program.transfers, program.device_inputs = self._placed.transfers, self._placed.device_inputs
        program.result_sides = tuple([HOST if v in self._placed.on_host else DEVICE for v in outputs])
        return program

    def _make(self, variables: Sequence[Variable]) -> None:
        if self._guard:
            self._made.update(variables)

    def _leave(self) -> None:
        """Close the open block: where it has not run, the same names are left, without a value."""
        made, lost = sorted([self._names[variable] for variable in self._made]), self._list(self._lost)
        self._guard, self._made, self._lost = [], set(), []
        if made or lost:
            self._add("else:")
        if made:
            self._add(f"    {' = '.join(made)} = None")
        if lost:
            self._add(f"    del {lost}")

    def _add(self, line: str) -> None:
        self._lines.append(f"    {'    ' if self._guard else ''}{line}")

    def _list(self, variables: Sequence[Variable]) -> str:
        return ", ".join([self._names[variable] for variable in variables])

    def _result(self, k: int, output: Variable) -> str:
        name = f"o{k}" if k in self._found.copied else self._names[output]
        if isinstance(output.type, TensorType) and output.type.ndim == 0:
            # Reductions and ufuncs make NumPy scalars of 0-d results; callers get arrays.
            asarray = np.asarray if output in self._placed.on_host else self._xp.asarray
            name = f"{self._names.bind(asarray, 'asarray')}({name})"
        target = self._target(self._found.settled.get(k))
        return (
            name if target is None else f"{self._names.bind(settle, 'settle')}({self._names[target]}, {name})"
        )

    def _target(self, variable: Variable | None) -> Variable | None:
        return None if variable is None else self._placed.targets.get(variable, variable)

    def _destination(self, node: Apply, read: Mapping[Variable, Variable]) -> str:
        """Return the ``out=`` argument of a node that is given one, else nothing.

        ``read`` gives for each input the copy of it that the node reads.
        """
        if node in self._found.joins:
            return f", out={self._buffer(self._found.joins[node].buffer)}"
        if node in self._reuse:
            places = ["None" if source is None else self._names[read[source]] for source in self._reuse[node]]
            return f", out={places[0]}" if len(places) == 1 else f", out=({', '.join(places)})"
        slot = self._found.slots.get(node)
        if slot is None:
            return ""
        buffer = self._buffer(slot.buffer)
        if slot.shape == slot.buffer.output.type.shape:
            return f", out={buffer}"
        return f", out={self._names.bind(part(slot.start, slot.stop, slot.shape), 'part')}({buffer})"

    def _buffer(self, buffer: Buffer) -> str:
        if buffer not in self._buffers:
            output, target = buffer.output, self._target(buffer.target)
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

    def bind(self, function: Any, name: str) -> str:
        """Return a name for ``function``, or a value, that is its own."""
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{len(self.namespace)}"
        self.namespace[name] = function
        return name
