"""Every difference between the supported PyTensor versions (3.0 to 3.x), in one place.

An Op that one version lacks is replaced here by an empty class, so that entries register
without asking which version runs. This module imports PyTensor alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from importlib import import_module
from typing import Any

from pytensor.compile.aliasing import add_supervisor_to_fgraph, insert_deepcopy
from pytensor.compile.io import In, Out
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.scan.op import Scan


def optional_class(name: str, *modules: str) -> type:
    """Return the class ``name`` of the first of ``modules`` that has it, else an unused stand-in."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return type(name, (), {"__doc__": "Not part of the installed PyTensor."})


AdvancedSubtensor1 = optional_class("AdvancedSubtensor1", "pytensor.tensor.subtensor")
AdvancedIncSubtensor1 = optional_class("AdvancedIncSubtensor1", "pytensor.tensor.subtensor")
FrozenFunctionGraph = optional_class("FrozenFunctionGraph", "pytensor.graph.fg")
Ger = optional_class("Ger", "pytensor.tensor.blas")
IfElse = optional_class("IfElse", "pytensor.conditional.op", "pytensor.ifelse")
LazyIfElse = optional_class("LazyIfElse", "pytensor.conditional.op")


def inner_graph(op: Any, rewriter: GraphRewriter) -> FunctionGraph:
    """Return the optimised inner graph of an ``OpFromGraph`` or ``Scan``, in an order that is safe in place.

    From 3.1 the outer compilation has rewritten it already; before, ``rewriter`` does it here.
    Either way the graph destroys none of its inputs and its outputs alias nothing outside.
    """
    frozen = isinstance(op.fgraph, FrozenFunctionGraph)
    graph = op.fgraph.unfreeze() if frozen else op.fgraph.clone()
    inputs = [In(variable, borrow=True, mutable=False) for variable in graph.inputs]
    # The supervisor brings the destroy handler, which sorts readers before destroyers.
    add_supervisor_to_fgraph(fgraph=graph, input_specs=inputs, accept_inplace=True)
    if not frozen or _rewriting_inner_graphs.get():
        rewriter.rewrite(graph)
    outputs = [Out(variable, borrow=False) for variable in graph.outputs]
    insert_deepcopy(graph, wrapped_inputs=inputs, wrapped_outputs=outputs)
    return graph


_rewriting_inner_graphs = ContextVar("rewriting_inner_graphs", default=False)


@contextmanager
def rewriting_inner_graphs() -> Iterator[None]:
    """Within this context, let `inner_graph` rewrite inner graphs with every version of PyTensor.

    It is for graphs that no outer compilation has rewritten. From 3.1 on their inner graphs would stay as
    written.
    """
    token = _rewriting_inner_graphs.set(True)
    try:
        yield
    finally:
        _rewriting_inner_graphs.reset(token)


def plain_graph(op: Any) -> FunctionGraph:
    """Return a copy of the inner graph of an Op, without any rewrite."""
    graph: Any = op.fgraph
    return graph.clone() if isinstance(graph, FunctionGraph) else graph.unfreeze()


def inferred_shape(feature: Any, variable: Any) -> tuple | None:
    """Return the symbolic lengths that a `ShapeFeature` has inferred for a variable, None if it has none."""
    if hasattr(feature, "get_non_recursive_shape"):  # from 3.1, which finds them when they are asked for
        return feature.shape_tuple(variable)
    return feature.shape_of.get(variable)


def host_op(op: Any) -> Any:
    """Return ``op`` in a form whose own implementation needs no C compiler, as the step of a Scan would."""
    if not isinstance(op, Scan):
        return op
    op = copy(op)
    op.mode, op._fn = "FAST_COMPILE", None
    return op


def take_axis(op: Any, inputs: tuple, position: int) -> tuple[int, tuple]:
    """Return the axis of a Join, Split or sort, and the values of its other inputs.

    The axis is a property of the Op from 3.1; before, it was the input at ``position``.
    """
    if hasattr(op, "axis"):
        return op.axis, inputs
    return int(inputs[position]), inputs[:position] + inputs[position + 1 :]


def known_axis(node: Any, position: int) -> tuple[int | None, list[int]]:
    """Return the axis of a Join, Split or sort node, and the positions of the node's other inputs.

    The axis is None if it is known only at run time.
    """
    if hasattr(node.op, "axis"):
        return node.op.axis, list(range(len(node.inputs)))
    axis = getattr(node.inputs[position], "data", None)
    others = [k for k in range(len(node.inputs)) if k != position]
    return None if axis is None else int(axis), others


def join_pieces(node: Any) -> tuple[int | None, list]:
    """Return the axis of a Join node, or None if only the call knows it, and the variables that it joins."""
    if hasattr(node.op, "axis"):
        return node.op.axis, list(node.inputs)
    axis = getattr(node.inputs[0], "data", None)
    return None if axis is None else int(axis), list(node.inputs[1:])
