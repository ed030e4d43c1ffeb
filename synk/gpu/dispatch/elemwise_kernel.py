"""Elemwise nodes as one kernel of a GPU, also in place and into given outputs.

    node -> fused: a kernel -> an implementation; None -> `elemwise` does without

Kernels read and write arrays of 16 bits, and take NumPy's scalars as arguments. With NumPy, elementwise nodes
are in regions (`synk.compile.regions`).
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.dispatch.broadcast import length_check
from synk.compile.programs.elementwise import NoTemplate
from synk.compile.tables import takes_out
from synk.gpu.elementwise.cuda_kernels import cupy_kernels


def fused(
    node: Apply,
    xp: ModuleType,
    instead: Callable[[], Callable],
    reads: Sequence[str] = (),
    gives: Sequence[str] = (),
) -> Callable | None:
    """Return an implementation of an Elemwise node by a kernel, or None if there is none.

    ``instead`` returns the implementation to use if the kernel does not compile. ``reads`` and ``gives`` are
    the dtypes of inputs and outputs that are stored in 16 bits, "" for others.
    """
    instead = cache(instead)

    def without_kernel(*arrays):
        outputs = arrays[len(node.inputs) :]
        instead()(*arrays[: len(node.inputs)], out=outputs if len(outputs) > 1 else outputs[0])
        return 0

    stored = (reads, gives) if any((*reads, *gives)) else ()
    try:
        kernel = cupy_kernels(xp).kernel(node, without_kernel, *stored)
    except NoTemplate:
        return None
    return _implementation(kernel, node, xp, *_dtypes(node, reads, gives))


def _dtypes(node: Apply, reads: Sequence[str], gives: Sequence[str]) -> tuple[list[np.dtype], list[np.dtype]]:
    """Return the dtypes of a node's inputs and outputs in memory."""

    def of(variables, kinds):
        kinds = kinds or [""] * len(variables)
        return [np.dtype(kind or v.type.dtype) for v, kind in zip(variables, kinds, strict=True)]

    return of(node.inputs, reads), of(node.outputs, gives)


def _implementation(
    kernel: Any, node: Apply, xp: ModuleType, inputs: Sequence[np.dtype], outputs: Sequence[np.dtype]
) -> Callable:
    allocate = [_allocator(i, node, xp, dtype) for i, dtype in enumerate(outputs)]
    make_fit = _repair(kernel, node, xp, [*inputs, *outputs])
    (create, *others) = allocate

    def single(*inputs, out=None):
        if out is None:
            out = create(inputs)
        if kernel.function(*inputs, out):
            make_fit(inputs, (out,))
        return out

    def several(*inputs, out=None):
        given = out or [None] * len(allocate)
        out = tuple([create(inputs) if o is None else o for create, o in zip(allocate, given, strict=True)])
        if kernel.function(*inputs, *out):
            make_fit(inputs, out)
        return out

    return takes_out(several if others else single)


def _allocator(position: int, node: Apply, xp: ModuleType, dtype: np.dtype) -> Callable[[Sequence], Any]:
    """Return a function that takes the inputs and returns the array for an output: a new one, or an input."""
    output = node.outputs[position]
    destination = node.op.inplace_pattern.get(position)
    if output.type.ndim == 0:
        return lambda inputs: xp.empty((), dtype)
    if destination is not None:
        return lambda inputs: inputs[destination]
    patterns = [variable.type.broadcastable for variable in node.inputs]
    pattern = tuple(all(axis) for axis in zip(*patterns, strict=True))
    if pattern in patterns:
        model = patterns.index(pattern)
        # In the model's order of axes, so that both are walked alike.
        return lambda inputs: xp.empty_like(inputs[model], dtype)
    givers = [next((k for k, p in enumerate(patterns) if not p[axis]), None) for axis in range(len(pattern))]
    return lambda inputs: xp.empty(
        tuple([1 if k is None else inputs[k].shape[axis] for axis, k in enumerate(givers)]), dtype
    )


def _repair(
    kernel: Any, node: Apply, xp: ModuleType, dtypes: Sequence[np.dtype]
) -> Callable[[Sequence, Sequence], None]:
    """Return the function that is called for arrays which a kernel refuses.

    It raises an error if lengths differ, or converts the arrays to the dtypes that the kernel takes.
    """
    check = length_check([variable.type.shape for variable in node.inputs])

    def make_fit(inputs, outputs):
        if check is not None:
            check(inputs)
        given = zip((*inputs, *outputs), dtypes, strict=True)
        arrays = [array.astype(dtype, copy=False) for array, dtype in given]
        if kernel.function(*arrays):
            shapes = ", ".join(str(array.shape) for array in (*inputs, *outputs))
            raise ValueError(f"shapes {shapes} of inputs and outputs differ")
        for output, array in zip(outputs, arrays[len(inputs) :], strict=True):
            if output is not array and not xp.may_share_memory(output, array):
                output[...] = array

    return make_fit
