"""Entries for Ops about the graph itself: copies, views, checks, conversions, inner graphs and choices."""

from copy import deepcopy

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar

from synk.compile.compat import IfElse, LazyIfElse, inner_graph
from synk.compile.programs.emit import emit
from synk.compile.rewriting.rewrites import inner_rewriter
from synk.compile.tables import array_funcify


@array_funcify.register(OpFromGraph)
def op_from_graph(op, node, xp):
    """Run the inner graph, as a program of its own."""
    return emit(inner_graph(op, inner_rewriter(xp)), xp, unpack=True)


@array_funcify.register(LazyIfElse)
def lazy_if_else(op, node, xp):
    """Run one of two inner graphs."""
    return Branches(op_from_graph(op.true_branch, node, xp), op_from_graph(op.false_branch, node, xp))


class Branches:
    """An implementation that runs one of two programs: ``branches(condition, *inputs)``."""

    def __init__(self, then, otherwise):
        self.then, self.otherwise = then, otherwise
        self.host_nodes = then.host_nodes + otherwise.host_nodes

    def __call__(self, condition, *inputs):
        return self.then(*inputs) if condition else self.otherwise(*inputs)


@array_funcify.register(IfElse)
def if_else(op, node, xp):
    """Return one of two groups of values, both of which have been computed."""
    n_outs, views = op.n_outs, op.as_view

    def choose(condition, *values):
        # The Op declares a view of the first branch at most, and only with as_view.
        chosen = values[:n_outs] if condition else values[n_outs:]
        if not (views and condition):
            chosen = tuple([copy_value(value) for value in chosen])
        return chosen[0] if n_outs == 1 else chosen

    return choose


def copy_value(value):
    """Return a copy of an array, a scalar or any object, which shares no memory with it."""
    if isinstance(value, np.generic):
        return value
    return value.copy() if hasattr(value, "__array__") else deepcopy(value)


@array_funcify.register(CheckAndRaise)
def check_and_raise(op, node, xp):
    """Return the input itself, if all conditions hold."""

    def check(x, *conditions):
        if not all(conditions):
            raise op.exc_type(op.msg)
        return x

    return check


ENTRIES = {
    DeepCopyOp: lambda op, node, xp: copy_value,
    TypeCastingOp: lambda op, node, xp: lambda x: x,  # under another type
    TensorFromScalar: lambda op, node, xp: xp.asarray,  # 0-d
    ScalarFromTensor: lambda op, node, xp: lambda x: x[()],
}

for op_class, entry in ENTRIES.items():
    array_funcify.register(op_class, entry)
