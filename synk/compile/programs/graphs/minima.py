"""Replace minima that PyTensor builds of negated maxima, whose numbers may overflow in narrow dtypes.

    graph, as written -> with_minima -> the same graph, in which -max(-x) is min(x), and argmax(-x) argmax(~x)

PyTensor builds ``x.min()`` of signed integers as ``-max(-x)``, though the lowest has no negative; of unsigned
ones as ``255 - max(255 - x)``; of truth values as ``~max(~x)``, which is no minimum of the counts that a
running sum makes of them. PyTensor turns some of these into minima while it compiles, but not where an
exchange between ranks stands in between. ``x.argmin()`` is ``argmax`` of the same. ``~x``, which is
``-x - 1``, has no overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import cast
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Argmax, Min, invert

from synk.compile.programs.graphs.origin import keep_origin, remade
from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.width import cumulated


def with_minima(results: Sequence[Variable]) -> list[Variable]:
    """Return copies of ``results`` in whose graph negated maxima are minima."""
    new: dict[Variable, Variable] = {}
    for node in topological(results):
        made = (_first_smallest if isinstance(node.op, Argmax) else _minimum)(node, new)
        if made is not None:
            keep_origin(node.outputs, [made])
            new[node.outputs[0]] = made
        elif any(variable in new for variable in node.inputs):
            remake = remade(node, [new.get(variable, variable) for variable in node.inputs])
            new.update(zip(node.outputs, remake.outputs, strict=True))
    return [new.get(variable, variable) for variable in results]


def _minimum(node: Apply, new: dict[Variable, Variable]) -> Variable | None:
    """Return the minimum that a node computes as a negated maximum, or None for other nodes.

    ``new`` maps variables of the old graph to those of the new one, on which the minimum is built.
    """
    greatest = _reversed(node)
    reduction = None if greatest is None else _reduction(greatest)
    x = None if reduction is None else _reversed(reduction.inputs[0].owner)
    if greatest is None or reduction is None or x is None:
        return None
    smallest = Min(reduction.op.axis)(new.get(x, x))
    # Axes that are kept are inserted as in the graph as written.
    kept = greatest.owner.op
    return kept(smallest) if isinstance(kept, DimShuffle) else smallest


def _first_smallest(node: Apply, new: dict[Variable, Variable]) -> Variable | None:
    """Return the position of the smallest element, for an Argmax of negated numbers; None for others."""
    x = _reversed(node.inputs[0].owner)
    if x is None:
        return None
    # The numbers of a running sum are wide; in the declared narrow dtype, ~ would keep their last bits only.
    return node.op(invert(cast(new.get(x, x), cumulated(x.type.dtype))))


def _reversed(node: Apply | None) -> Variable | None:
    """Return the variable of integers or truth values that a node negates, or None.

    Negated is ``-x``, of unsigned integers the largest one minus ``x``, of truth values ``~x``.
    """
    if node is None or not isinstance(node.op, Elemwise):
        return None
    x, operation = node.inputs[-1], node.op.scalar_op
    match np.dtype(x.type.dtype).kind:
        case "i":
            reverse = isinstance(operation, ps.Neg)
        case "u":
            narrow = node.outputs[0].type.dtype == x.type.dtype
            reverse = narrow and isinstance(operation, ps.Sub) and _is_largest(node.inputs[0], x.type.dtype)
        case kind:
            reverse = kind == "b" and isinstance(operation, ps.Invert)
    return x if reverse else None


def _is_largest(variable: Variable, dtype: str) -> bool:
    """Tell whether a variable is the largest number of a dtype."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle):
        variable = node.inputs[0]
    return isinstance(variable, Constant) and variable.data.size == 1 and variable.data == np.iinfo(dtype).max


def _reduction(variable: Variable) -> Apply | None:
    """Return the node that computes a variable as a maximum, keeping the reduced axes or not; else None."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle):
        node = node.inputs[0].owner
    is_maximum = (
        node is not None and isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, ps.Maximum)
    )
    return node if is_maximum else None
