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
from collections.abc import Callable, Sequence
from itertools import count
from types import ModuleType
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

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
            node = self.failed_node(error)
            if node is not None:
                error.add_note(f"Apply node that caused the error: {node}")
            raise

    def failed_node(self, error: BaseException) -> Apply | None:
        """Return the node on whose line ``error`` arose, or None if it arose outside the program."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self._function.__code__:
                return self._nodes.get(trace.tb_lineno)
            trace = trace.tb_next
        return None


def emit(
    fgraph: FunctionGraph,
    xp: ModuleType,
    order: Sequence[Apply] | None = None,
    unpack: bool = False,
    observe: Observer | None = None,
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
    """
    nodes = list(fgraph.toposort() if order is None else order)
    names = _Names(xp)
    lines = [f"def program({', '.join(names[variable] for variable in fgraph.inputs)}):"]
    node_at: dict[int, Apply] = {}
    host_nodes: list[Apply] = []
    for node, dead in zip(nodes, last_uses(nodes, fgraph.outputs), strict=True):
        implementation = array_funcify(node.op, node, xp)
        host_nodes += getattr(implementation, "host_nodes", ())
        if observe is not None:
            implementation = observe(node, implementation)
        function = names.bind(implementation, node)
        arguments = ", ".join([names[variable] for variable in node.inputs])
        lines.append(f"    {', '.join([names[v] for v in node.outputs])} = {function}({arguments})")
        node_at[len(lines)] = node
        if dead:
            lines.append(f"    del {', '.join([names[variable] for variable in dead])}")
    results = [_as_array(variable, names[variable]) for variable in fgraph.outputs]
    bare = unpack and len(results) == 1
    lines.append(
        "    return " + (results[0] if bare else f"({''.join(f'{result}, ' for result in results)})")
    )
    return Program("\n".join(lines) + "\n", names.namespace, node_at, tuple(host_nodes))


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


def _as_array(variable: Variable, name: str) -> str:
    """Reductions and ufuncs make NumPy scalars of 0-d results; callers get arrays."""
    scalar = isinstance(variable.type, TensorType) and variable.type.ndim == 0
    return f"asarray({name})" if scalar else name


class _Names(dict):
    """Names of variables, made on first use; constants and implementations are bound in ``namespace``."""

    def __init__(self, xp: ModuleType):
        self.namespace: dict[str, Any] = {"asarray": xp.asarray}

    def __missing__(self, variable: Variable) -> str:
        constant = isinstance(variable, Constant)
        name = self[variable] = f"{'c' if constant else 'v'}{len(self)}"
        if constant:
            self.namespace[name] = variable.data
        return name

    def bind(self, implementation: Callable, node: Apply) -> str:
        op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
        name = f"{re.sub(r'[^A-Za-z0-9_]', '_', type(op).__name__)}_{len(self.namespace)}"
        self.namespace[name] = implementation
        return name
