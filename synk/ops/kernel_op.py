"""The base class of the Ops of networks, which kernels compute.

    Op, array module -> provider -> kernel -> implementation, which checks its inputs first
    Op               -> plain provider, in float64 -> perform, the definition that tests compare kernels with

A provider is an object that makes kernels for one array module. An Op says which provider it takes and which
kernel of that; its entry in the dispatch tables, its ``perform`` and its use of 16-bit arrays follow from
these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from synk.compile.tables import WIDE, Width, array_funcify, goes_by_dtype, takes_out, width


class KernelOp(Op):
    """An Op that is computed by a kernel of a provider.

    Attributes
    ----------
    provider : callable
        One of `synk.ops.kernels.choose`: takes an array module and a dtype, and returns the provider.
    plain : provider
        The provider written in NumPy's array operations, which defines the results.
    check : callable or None
        Takes the inputs, and raises ValueError unless their shapes fit each other: a graph often does not
        know lengths, and a kernel in C would read beyond the end of an array. None where all kernels check
        themselves.
    width : Width
        Which inputs and outputs may be arrays of 16 bits.
    differentiated : str
        Of an Op that computes a gradient, and has none itself: the function that it is the gradient of.
    """

    provider: Callable[[ModuleType, str], Any]
    plain: Any
    check: Any = None
    width: Width = WIDE
    differentiated: str

    def kernel(self, provider: Any, node: Apply) -> Callable:
        """Return a kernel that ``provider`` makes for this Op: a function of arrays that takes ``out=``."""
        raise NotImplementedError

    def output_shapes(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        """Return the shapes of the outputs, from those of the inputs."""
        raise NotImplementedError

    def infer_shape(self, *arguments: Any) -> list[Any]:
        *_, node, shapes = arguments  # PyTensor before 3.1 has the graph in front
        # Where the type knows a length, its number is used: arithmetic on symbolic lengths would grow the
        # graph.
        known = [
            [symbolic if n is None else n for n, symbolic in zip(variable.type.shape, shape, strict=True)]
            for variable, shape in zip(node.inputs, shapes, strict=True)
        ]
        return self.output_shapes(node, known)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute by the plain provider, in float64."""
        if self.check is not None:
            self.check(*inputs)
        wide = [value.astype("float64") if value.dtype.kind == "f" else value for value in inputs]
        results = self.kernel(self.plain, node)(*wide)
        results = results if len(node.outputs) > 1 else (results,)
        for cell, value, output in zip(output_storage, results, node.outputs, strict=True):
            cell[0] = np.asarray(value, output.type.dtype, order="C")

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        raise NotImplementedError(f"second derivatives of {self.differentiated} are not available")


@array_funcify.register(KernelOp)
def kernel_entry(op: Any, node: Apply, xp: ModuleType) -> Callable:
    """Return the implementation of a node: check the inputs, then call the kernel for the array module."""
    run = op.kernel(op.provider(xp, node.outputs[0].type.dtype), node)
    check = op.check
    if check is None:
        return takes_out(run)

    def implementation(*inputs, out=None):
        check(*inputs)
        return run(*inputs, out=out)

    return takes_out(implementation)


@width.register(KernelOp)
def width_of_kernel(op: Any, node: Apply) -> Width:
    """Return which inputs and outputs may have 16 bits; a convolution without bias lacks the third input."""
    return op.width._replace(rounds=[k for k in op.width.rounds if k < len(node.inputs)])


@goes_by_dtype.register(KernelOp)
def kernel_goes_by_dtype(op: Any, node: Apply, xp: ModuleType) -> bool:
    """Return whether the kernel takes arrays of 16 bits as well as of 32: its provider knows."""
    return op.width is not WIDE and op.provider(xp, "float32").by_dtype
