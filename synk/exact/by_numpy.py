"""Join by NumPy, and in its dtypes, what `check="first"` computes in one process.

PyTensor's own implementations write into an array of the dtype that is declared: the running sum of int8,
which is one of 64 bits, wraps there.

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
    """Return arrays joined along the axis, which PyTensor 3.0 has as the first input."""
    axis, arrays = take_axis(op, inputs, 0)
    return np.concatenate(arrays, axis)


def on_diagonal(op: AllocDiag, values: Any) -> Any:
    """Return zeros with ``values`` on a diagonal of two axes."""
    n = values.shape[-1]
    result = np.zeros((*values.shape[:-1], *[n + abs(op.offset)] * 2), values.dtype)
    result[..., np.arange(n) + max(0, -op.offset), np.arange(n) + max(0, op.offset)] = values
    return np.moveaxis(result, (-2, -1), (op.axis1, op.axis2))


def blocks(op: BlockDiagonal, *matrices: Any) -> Any:
    """Return zeros with the matrices one after the other on the diagonal, for each of a batch."""
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
    """Another Op's result as NumPy computes it, in whatever dtype."""

    __props__ = ("op",)

    def __init__(self, op: Op):
        self.op = op

    def make_node(self, *inputs: Any) -> Apply:
        """Return a node that declares what the Op declares."""
        declared = self.op.make_node(*inputs)
        return Apply(self, declared.inputs, [output.type() for output in declared.outputs])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute by NumPy."""
        op = _core(self.op)
        outputs[0][0] = NUMPYS[type(op)](op, *inputs)


def _core(op: Op) -> Op:
    """Return the Op for two axes, where another repeats it over a batch, as in ``block_diag``."""
    return op.core_op if isinstance(op, Blockwise) and isinstance(op.core_op, BlockDiagonal) else op


def by_numpy(results: Sequence[Variable]) -> list[Variable]:
    """Return ``results``, which are left as they are, of a graph whose integers NumPy joins."""
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
