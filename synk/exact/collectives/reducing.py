"""Ops that combine the values of all ranks, element by element, and their gradients.

    AllReduce       arrays of one dtype -> one flat vector -> the communicator -> views of the result
    ReduceScatter   the same of one array, of which each rank keeps its part of the rows

Gradients are combined over the ranks by such Ops, too: ``differentiated`` names the operation, and
``factors`` returns the derivatives of a result with respect to this rank's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor import config
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from synk.exact.collectives.collective_op import CollectiveOp, any_length, is_discrete, whole_number
from synk.values.operations import check_operation
from synk.values.rows import split


class ReducingOp(CollectiveOp):
    """A collective that combines the values of all ranks by an operation.

    Parameters
    ----------
    op : {"sum", "prod", "min", "max", "avg"}
    number : int, optional
        As of `CollectiveOp`.
    """

    __props__ = ("op", "number")

    def __init__(self, op: str, number: int | None = None):
        super().__init__(number)
        self.op = op


class AllReduceOp(ReducingOp):
    """Combine the values of all ranks: several arrays of one dtype by one collective.

    ``AllReduceOp(op)(x, y, ranks)`` returns a list with the result for each array, or for one array its
    result.
    """

    def make_node(self, *inputs: Any) -> Apply:
        *xs, together = inputs
        xs = [pt.as_tensor_variable(x) for x in xs]
        dtypes = {x.type.dtype for x in xs}
        if len(dtypes) != 1:
            raise TypeError(f"one AllReduce combines arrays of one dtype, not of {sorted(dtypes) or 'none'}")
        check_operation(self.op, xs[0].type.dtype, "what is to be reduced")
        return Apply(self, [*xs, together], [TensorType(x.type.dtype, x.type.shape)() for x in xs])

    def infer_shape(self, *arguments: Any) -> list:  # PyTensor before 3.1 passes the graph first
        return list(arguments[-1][:-1])

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        return combined(xp, together, arrays, self.op)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        n = len(node.outputs)
        return [[k == at for at in range(n)] for k in range(n + 1)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        *xs, together = inputs
        if is_discrete(xs[0]):
            return [*(x.zeros_like(dtype=config.floatX) for x in xs), DisconnectedType()()]
        slopes = [DisconnectedType()() for _ in xs]
        wanted = [k for k, slope in enumerate(cotangents) if not isinstance(slope.type, DisconnectedType)]
        if wanted:
            xs, ys, given = ([row[k] for k in wanted] for row in (xs, outputs, cotangents))
            sums = AllReduceOp(differentiated(self.op)).make_node(*given, together).outputs
            for k, total, factor in zip(wanted, sums, factors(self.op, xs, ys, together), strict=True):
                slopes[k] = total * factor
        return [*slopes, DisconnectedType()()]


class ReduceScatterOp(ReducingOp):
    """Combine the arrays of all ranks, and return this rank's part of the result's rows."""

    def make_node(self, x: Any, together: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        check_operation(self.op, x.type.dtype, "what is to be reduced")
        return Apply(self, [x, together], [TensorType(x.type.dtype, any_length(x, 0))()])

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        x = arrays[0]
        if xp is np and self.op != "avg":
            return [together.reduce_scatter(x, self.op)]
        (total,) = combined(xp, together, [x], self.op)
        return [total[part_of_rank(together, len(total))].copy()]

    def adjoint(self, x: Any, y: Any, slope: Any, together: Any) -> Variable:
        joined = ReduceScatterGradient(differentiated(self.op))(slope, x.shape[0], together)
        total = [AllReduceOp(self.op)(x, together)] if self.op in ("min", "max") else []
        return joined * factors(self.op, [x], total, together)[0]


class ReduceScatterGradient(ReducingOp):
    """Join the gradients of all ranks' parts to ``length`` rows.

    "avg" divides them by the number of ranks that have rows.
    """

    lengths = (1,)

    def make_node(self, slope: Any, length: Any, together: Any) -> Apply:
        slope = pt.as_tensor_variable(slope)
        output = TensorType(slope.type.dtype, any_length(slope, 0))()
        return Apply(self, [slope, whole_number(length), together], [output])

    def infer_shape(self, *arguments: Any) -> list:
        *_, node, (shape, *_) = arguments
        return [(node.inputs[1], *shape[1:])]

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        slope, length = arrays
        # Parts are joined by a sum of padded arrays: a rank without rows for a slice has a part, too, and
        # adds 0.
        padded = xp.zeros((int(length), *slope.shape[1:]), slope.dtype)
        padded[part_of_rank(together, int(length))] = slope
        return combined(xp, together, [padded], self.op)

    def adjoint(self, x: Any, y: Any, slope: Any, together: Any) -> Variable:
        return ReduceScatterOp(self.op)(slope, together)


def combined(xp: Any, together: Any, arrays: Sequence[Any], op: str) -> list[Any]:
    """Return this rank's arrays combined with those of all other ranks, by one collective."""
    if len(arrays) == 1 and op != "avg":
        return [together.all_reduce(xp.array(arrays[0]), op)]
    arrays = [xp.asarray(array) for array in arrays]
    # The average of all ranks' ones tells which share of them has rows.
    share = [xp.ones(1, arrays[0].dtype)] if op == "avg" else []
    flat = together.all_reduce(xp.concatenate([*(array.ravel() for array in arrays), *share]), op)
    if share:
        with np.errstate(all="ignore"):  # where no rank has rows, 0 is divided by 0
            flat = flat[:-1] / flat[-1:]
    ends = np.cumsum([array.size for array in arrays])
    return [
        flat[end - array.size : end].reshape(array.shape)
        for end, array in zip(map(int, ends), arrays, strict=True)
    ]


def differentiated(op: str) -> str:
    """Return the operation that combines the gradients of all ranks for the result of ``op``."""
    return "avg" if op == "avg" else "sum"


def factors(op: str, xs: Sequence[Any], ys: Sequence[Any], together: Any) -> list[Any]:
    """Return the derivative of each result of ``op`` by this rank's value, 1 for sums and averages."""
    if op in ("min", "max"):
        return [pt.eq(x, y).astype(x.type.dtype) for x, y in zip(xs, ys, strict=True)]
    if op != "prod":
        return [pt.constant(np.asarray(1, x.type.dtype)) for x in xs]
    is_zero = [pt.eq(x, 0) for x in xs]
    n_zeros = (
        AllReduceOp("sum")
        .make_node(*[zero.astype(x.type.dtype) for zero, x in zip(is_zero, xs, strict=True)], together)
        .outputs
    )
    # The product of the elements that are not 0 serves, for all ranks but those of which another has a 0.
    filled = [pt.switch(zero, pt.ones_like(x), x) for zero, x in zip(is_zero, xs, strict=True)]
    products = AllReduceOp("prod").make_node(*filled, together).outputs
    return [
        pt.switch(pt.eq(n, zero.astype(n.type.dtype)), product / one, pt.zeros_like(product))
        for n, zero, product, one in zip(n_zeros, is_zero, products, filled, strict=True)
    ]


def part_of_rank(together: Any, n_rows: int) -> slice:
    """Return the slice of this rank's part of ``n_rows`` rows that are split over all ranks."""
    return slice(*split(n_rows, together.n_ranks)[together.rank])
