"""Ops that give the values of ranks to all, and their gradients.

    AllGather   arrays of all ranks, joined along an axis     its gradient: each rank's own part of a sum
    Broadcast   that of one rank                              its gradient: a sum, on that rank

The ranks' arrays may differ in shape, so the Ops of gradients have the length or shape of this rank's array
as an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from synk.exact.collectives.collective_op import CollectiveOp, any_length, whole_number


class AlongAxis(CollectiveOp):
    """An Op in which arrays are parts of a joined one, along an axis.

    Parameters
    ----------
    axis : int
        Not negative.
    number : int, optional
        As of `CollectiveOp`.
    """

    __props__ = ("axis", "number")

    def __init__(self, axis: int = 0, number: int | None = None):
        super().__init__(number)
        self.axis = axis


class AllGatherOp(AlongAxis):
    """Join the arrays of all ranks along an axis."""

    def make_node(self, x: Any, together: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x, together], [TensorType(x.type.dtype, any_length(x, self.axis))()])

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        axis = self.axis

        def joined(parts: Sequence[Any]) -> Any:
            # An array without rows is left out, since its other lengths may be unknown, and not fit.
            parts = [part for part in parts if len(part)] or parts[:1]
            return xp.concatenate([xp.moveaxis(part, 0, axis) for part in parts], axis)

        return [together.all_gather(xp.moveaxis(arrays[0], axis, 0), read=joined)]

    def adjoint(self, x: Any, y: Any, slope: Any, together: Any) -> Variable:
        return AllGatherGradient(self.axis)(slope, x.shape[self.axis], together)


class AllGatherGradient(AlongAxis):
    """Sum the gradients over ranks, and return this rank's part of the sum along an axis.

    The parts are in rank order; that of this rank has the given ``length``.
    """

    lengths = (1,)

    def make_node(self, slope: Any, length: Any, together: Any) -> Apply:
        slope = pt.as_tensor_variable(slope)
        output = TensorType(slope.type.dtype, any_length(slope, self.axis))()
        return Apply(self, [slope, whole_number(length), together], [output])

    def infer_shape(self, *arguments: Any) -> list:
        *_, node, (shape, *_) = arguments
        return [(*shape[: self.axis], node.inputs[1], *shape[self.axis + 1 :])]

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        slope, length = arrays
        lengths = together.on_host.all_gather(np.reshape(length, (1,)))
        total = together.all_reduce(xp.array(slope), "sum")
        before, behind = total.shape[: self.axis], total.shape[self.axis + 1 :]
        if not lengths[together.rank].size:  # a rank without rows had no part in what was gathered
            return [xp.zeros((*before, int(length), *behind), total.dtype)]
        start = int(np.concatenate([[0], *lengths[: together.rank]]).sum())
        return [total[(*(slice(None),) * self.axis, slice(start, start + int(length)))].copy()]

    def adjoint(self, x: Any, y: Any, slope: Any, together: Any) -> Variable:
        return AllGatherOp(self.axis)(slope, together)


class FromRoot(CollectiveOp):
    """An Op in which one rank, ``root``, has the value.

    Parameters
    ----------
    root : int
    number : int, optional
        As of `CollectiveOp`.
    """

    __props__ = ("root", "number")

    def __init__(self, root: int = 0, number: int | None = None):
        super().__init__(number)
        self.root = root


class BroadcastOp(FromRoot):
    """Give one rank's value to all."""

    def make_node(self, x: Any, together: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        if self.root < 0:
            raise ValueError(f"root={self.root} is no rank; ranks are counted from 0")
        return Apply(self, [x, together], [TensorType(x.type.dtype, x.type.shape)()])

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        x = xp.asarray(arrays[0])
        y = together.broadcast(x, root_of(together, self.root))
        return [y.copy() if y is x else y]

    def adjoint(self, x: Any, y: Any, slope: Any, together: Any) -> Variable:
        return BroadcastGradient(self.root)(slope, x.shape, together)


class BroadcastGradient(FromRoot):
    """Sum the gradients over ranks; return the sum on the rank ``root``, and zeros of ``shape`` on others."""

    lengths = (1,)

    def make_node(self, slope: Any, shape: Any, together: Any) -> Apply:
        slope, shape = pt.as_tensor_variable(slope), pt.as_tensor_variable(shape, ndim=1, dtype="int64")
        return Apply(self, [slope, shape, together], [TensorType(slope.type.dtype, slope.type.shape)()])

    def infer_shape(self, *arguments: Any) -> list:
        *_, node, _ = arguments
        return [tuple([node.inputs[1][k] for k in range(node.inputs[0].type.ndim)])]

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        slope, shape = arrays
        root = root_of(together, self.root)
        total = together.all_reduce(xp.array(slope), "sum")
        return [total if together.rank == root else xp.zeros(tuple(map(int, shape)), total.dtype)]

    def adjoint(self, x: Any, y: Any, slope: Any, together: Any) -> Variable:
        return BroadcastOp(self.root)(slope, together)


def root_of(together: Any, root: int) -> int:
    """Return ``root``, or 0 on a single rank; raise ValueError if several ranks have none of that number."""
    if together.n_ranks == 1:
        return 0
    if root >= together.n_ranks:
        raise ValueError(f"root={root} is no rank of this run, which has {together.n_ranks}")
    return root
