"""Count the floating-point operations of nodes: matrix products, and what registers, from shapes alone."""

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

# Where the left factor stands among the inputs; its last axis is the one that is summed over.
LEFT = {Dot: 0, Dot22: 0, Dot22Scalar: 0, BatchedDot: 0, Gemm: 2, Gemv: 2}

Count = Callable[[Sequence[Any], Sequence[Any]], int]


@singledispatch
def flops_of(op: Any) -> Count | None:
    """Return ``count(inputs, results)``: two operations for each product that is summed; None if unknown.

    An Op of any other package joins by ``flops_of.register(MyOp)``.
    """
    left = LEFT.get(type(op))
    if left is None:
        return None
    return lambda inputs, results: 2 * int(inputs[left].shape[-1]) * int(results[0].size)


@flops_of.register(Blockwise)
def _of_core(op: Blockwise) -> Count | None:
    return flops_of(op.core_op)
