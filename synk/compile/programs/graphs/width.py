"""Declare the dtypes in which Ops compute, where PyTensor declares narrower ones.

    graph, as written -> as_performed -> the same graph, in which declared dtypes are those of ``perform``

NumPy counts truth values and sums narrow integers in 64 bits, and PyTensor's Ops do as NumPy does: a running
sum of bool, declared bool, is int64. An Op that only moves numbers, such as an index, passes the wide numbers
on; an elementwise Op or a reduction returns the dtype that it declares. But C loops, buffers between ranks
and shared variables go by declared dtypes, in which the wide numbers would wrap. So the input of such an Op
is converted to the wide dtype, and the Op then declares what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.scalar.basic as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.tensor.basic import AllocDiag, MakeVector, alloc_diag
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.extra_ops import CumOp

from synk.compile.programs.graphs.origin import keep_origin, place_of, remade
from synk.compile.programs.graphs.serialize import topological


class TooNarrowError(TypeError):
    """An Op that declares a narrow dtype cannot take the wider numbers of a running sum."""


def as_performed(results: Sequence[Variable]) -> list[Variable]:
    """Return copies of ``results`` whose graph declares the dtypes in which its Ops compute.

    Parameters
    ----------
    results : sequence of Variable
        Left as they are. The copies of those that pass on a running sum of narrow integers have a wider
        dtype.

    Raises
    ------
    TooNarrowError
        An Op cannot take the wider numbers; the message names the line that built it.
    """
    new: dict[Variable, Variable] = {}
    for node in topological(results):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        made = _made(node, inputs)
        if made is not node.outputs:
            keep_origin(node.outputs, made)
            new.update(zip(node.outputs, made, strict=True))
    return [new.get(variable, variable) for variable in results]


def _made(node: Apply, inputs: Sequence[Any]) -> Sequence[Variable]:
    op = node.op
    if isinstance(op, CumOp):
        wide = cumulated(inputs[0].type.dtype)
        if wide != inputs[0].type.dtype:
            return [op(pt.cast(inputs[0], wide))]
    elif isinstance(op, Elemwise) and isinstance(op.scalar_op, ps.Pow):
        return _power(node, inputs)
    if all(one is other for one, other in zip(inputs, node.inputs, strict=True)):
        return node.outputs
    # These two build their results for one dtype.
    if isinstance(op, AllocDiag):
        return [alloc_diag(inputs[0], op.offset, op.axis1, op.axis2)]
    if isinstance(op, MakeVector):
        return [MakeVector(str(np.result_type(*(one.type.dtype for one in inputs))))(*inputs)]
    if isinstance(op, CAReduce):
        # Its elements are converted before they are combined.
        inputs = [pt.cast(inputs[0], op.acc_dtype or node.outputs[0].type.dtype)]
    outputs = _on(node, inputs).outputs
    if isinstance(op, Elemwise | CAReduce | ps.ScalarOp):
        return [_cast(one, old.type.dtype) for one, old in zip(outputs, node.outputs, strict=True)]
    return outputs


def cumulated(dtype: str) -> str:
    """Return the dtype in which NumPy computes running sums and products of numbers of a dtype."""
    return str(np.cumsum(np.zeros(1, dtype)).dtype) if np.dtype(dtype).kind in "biu" else dtype


def _power(node: Apply, inputs: Sequence[Any]) -> Sequence[Variable]:
    """Return a power whose base has the declared dtype.

    PyTensor's rewrites multiply the base by itself in its own dtype, which may wrap.
    """
    declared = node.outputs[0].type.dtype
    base = inputs[0]
    if base is node.inputs[0] and (
        base.type.dtype == declared or np.dtype(base.type.dtype).kind not in "biu"
    ):
        return node.outputs
    return [_cast(node.op(pt.cast(base, declared), inputs[1]), declared)]


def _on(node: Apply, inputs: Sequence[Variable]) -> Apply:
    if isinstance(node.op, HasInnerGraph) and not isinstance(node.op, Elemwise):
        raise TooNarrowError(refusal(node, "its graph inside declares narrower ones"))
    try:
        made = remade(node, inputs)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TooNarrowError(refusal(node, str(error))) from error
    for one, old in zip(made.outputs, node.outputs, strict=True):
        if getattr(one.type, "ndim", None) != getattr(old.type, "ndim", None):
            raise TooNarrowError(refusal(node, f"{one.type} is not {old.type}"))
    return made


def refusal(node: Apply, why: str) -> str:
    """Return the message that a node cannot take a running sum's wide numbers, with line and remedy."""
    place = f" ({where})" if (where := place_of(node)) else ""
    return (
        f"{node.op}{place}: a running sum or product of narrow integers or truth values is one of 64 bits, "
        f"as in NumPy, which does not fit here: {why}; "
        "convert what is summed, pt.cumsum(x.astype('int64')), or the sum"
    )


def _cast(variable: Any, dtype: str) -> Any:
    return variable if variable.type.dtype == dtype else pt.cast(variable, dtype)
