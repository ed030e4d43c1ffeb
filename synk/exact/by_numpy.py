"""Replace the Ops that join integers, for `check="first"`, by Ops that join them in NumPy's dtypes.

A running sum of int8 is computed in 64 bits. PyTensor's own implementations of Ops such as Join would copy it
to an array of the declared dtype, int8, where large numbers wrap around.

    results, as written -> by_numpy -> the same graph, in which NumPy joins integers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.basic import AllocDiag, Join, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.constructors import BlockDiagonal

from synk.compile.compat import take_axis
from synk.compile.programs.graphs.origin import keep_origin, remade
from synk.compile.programs.graphs.serialize import topological


def joined(op: Join, *inputs: Any) -> Any:
    """Return arrays joined along an axis, which PyTensor 3.0 has as the first input, later ones in the Op."""
    axis, arrays = take_axis(op, inputs, 0)
    return np.concatenate(arrays, axis)


def on_diagonal(op: AllocDiag, values: Any) -> Any:
    """Return zeros with ``values`` on a diagonal of two axes."""
    n = values.shape[-1]
    result = np.zeros((*values.shape[:-1], *[n + abs(op.offset)] * 2), values.dtype)
    result[..., np.arange(n) + max(0, -op.offset), np.arange(n) + max(0, op.offset)] = values
    return np.moveaxis(result, (-2, -1), (op.axis1, op.axis2))


def blocks(op: BlockDiagonal, *matrices: Any) -> Any:
    """Return the block-diagonal matrix of ``matrices``, or one for each entry of their batch axes."""
    batch = np.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices))
    length, width = np.sum([matrix.shape[-2:] for matrix in matrices], axis=0)
    result = np.zeros((*batch, length, width), np.result_type(*matrices))
    row = column = 0
    for matrix in matrices:
        below, right = row + matrix.shape[-2], column + matrix.shape[-1]
        result[..., row:below, column:right] = matrix
        row, column = below, right
    return result


NUMPYS: dict[type[Op], Callable[..., Any]] = {
    Join: joined,
    MakeVector: lambda op, *numbers: np.stack(numbers),
    AllocDiag: on_diagonal,
    BlockDiagonal: blocks,
}


class ByNumPy(Op):
    """An Op that computes another Op's result by NumPy, in the dtype that NumPy gives it."""

    __props__ = ("op",)

    def __init__(self, op: Op):
        self.op = op

    def make_node(self, *inputs: Any) -> Apply:
        """Return a node with the inputs and output types of the other Op's node."""
        declared = self.op.make_node(*inputs)
        return Apply(self, declared.inputs, [output.type() for output in declared.outputs])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute the result by the function in `NUMPYS` for the other Op."""
        op = _core(self.op)
        outputs[0][0] = NUMPYS[type(op)](op, *inputs)


def _core(op: Op) -> Op:
    """Return the Op inside a `Blockwise` of `BlockDiagonal`, as ``block_diag`` makes; any other Op itself."""
    return op.core_op if isinstance(op, Blockwise) and isinstance(op.core_op, BlockDiagonal) else op


def by_numpy(results: Sequence[Variable]) -> list[Variable]:
    """Return copies of ``results`` in whose graph NumPy joins the integers."""
    new: dict[Variable, Variable] = {}
    for node in topological(results):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        integers = getattr(node.outputs[0].type, "dtype", "")[:3] in ("boo", "int", "uin")
        if type(_core(node.op)) in NUMPYS and integers:
            made = ByNumPy(node.op).make_node(*inputs)
            keep_origin(node.outputs, made.outputs)
        else:
            made = remade(node, inputs)
        new.update(zip(node.outputs, made.outputs, strict=True))
    return [new.get(variable, variable) for variable in results]
