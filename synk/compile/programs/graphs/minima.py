"""Take minima of signed integers without their negatives, of which the lowest number has none.

    graph, as written -> with_minima -> the same graph, in which -max(-x) of integers is ~max(~x)

PyTensor builds ``x.min()`` as ``-max(-x)`` and makes a minimum of it again while it compiles, which it cannot
where ranks meet in between. ``~x`` is ``-x - 1``, which has no overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import invert

from synk.compile.programs.graphs.origin import keep_origin, remade
from synk.compile.programs.graphs.serialize import topological


def with_minima(results: Sequence[Variable]) -> list[Variable]:
    """Return ``results``, which are left as they are, of a graph with the minima that its lines ask for."""
    new: dict[Variable, Variable] = {}
    for node in topological(results):
        reduction = _reduction(_negated(node.outputs[0]))
        x = None if reduction is None else _negated(reduction.inputs[0])
        if reduction is not None and x is not None:
            greatest = reduction.op(invert(new.get(x, x)))
            minimum = invert(_kept(node.inputs[0], greatest))
            keep_origin(node.outputs, [minimum])
            new[node.outputs[0]] = minimum
        elif any(variable in new for variable in node.inputs):
            made = remade(node, [new.get(variable, variable) for variable in node.inputs])
            new.update(zip(node.outputs, made.outputs, strict=True))
    return [new.get(variable, variable) for variable in results]


def _negated(variable: Variable | None) -> Variable | None:
    """Return the signed integers of which a variable has the negatives, or None."""
    node = None if variable is None else variable.owner
    signed = str(getattr(getattr(variable, "type", None), "dtype", "")).startswith("int")
    if node is None or not signed or not isinstance(node.op, Elemwise):
        return None
    return node.inputs[0] if isinstance(node.op.scalar_op, ps.Neg) else None


def _reduction(variable: Variable | None) -> Apply | None:
    """Return the node of a maximum, whose reduced axes are kept or not."""
    node = None if variable is None else variable.owner
    if node is not None and isinstance(node.op, DimShuffle):
        node = node.inputs[0].owner
    is_maximum = (
        node is not None and isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, ps.Maximum)
    )
    return node if is_maximum else None


def _kept(written: Variable, made: Variable) -> Variable:
    """Return the new variable, its axes inserted as in the graph as written."""
    op = written.owner.op
    return op(made) if isinstance(op, DimShuffle) else made
