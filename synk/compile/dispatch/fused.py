"""Elemwise nodes by kernels: loops compiled for one node, in place and into given outputs too.

Where there is no kernel, a Composite runs as its scalar Ops, one after another on whole arrays.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import Elemwise

from synk.compile.dispatch.broadcast import length_check
from synk.compile.dispatch.out import takes_out
from synk.compile.kernels import NoTemplate, kernels_for


def fused(node: Apply, xp: ModuleType, instead: Callable[[], Callable]) -> Callable | None:
    """Return an implementation of an Elemwise node by a kernel, or None if it cannot have one.

    Parameters
    ----------
    node : Apply
        Of an Elemwise.
    xp : module
        Array module.
    instead : callable
        Makes the implementation to use should the kernel turn out not to compile.
    """
    kernels = kernels_for(xp)
    if kernels is None:
        return None

    def without_kernel(*arrays):
        outputs = arrays[len(node.inputs) :]
        instead()(*arrays[: len(node.inputs)], out=outputs if len(outputs) > 1 else outputs[0])
        return 0

    try:
        kernel = kernels.kernel(node, without_kernel)
    except NoTemplate:
        return None
    return _implementation(kernel, node, xp)


def _implementation(kernel: Any, node: Apply, xp: ModuleType) -> Callable:
    allocate = [_allocator(i, node, xp) for i in range(len(node.outputs))]
    make_fit = _repair(kernel, node, xp)
    scalars = node.outputs[0].type.ndim == 0
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

    function = takes_out(several if others else single)
    if not scalars:
        return function
    # NumPy scalars may come in place of 0-d arrays.
    return lambda *inputs, out=None: function(*[xp.asarray(x) for x in inputs], out=out)


def _allocator(position: int, node: Apply, xp: ModuleType) -> Callable[[Sequence], Any]:
    """Return a function of the inputs that makes an output, or finds the input that it overwrites."""
    output = node.outputs[position]
    destination = node.op.inplace_pattern.get(position)
    dtype = np.dtype(output.type.dtype)
    if output.type.ndim == 0:
        return lambda inputs: xp.empty((), dtype)
    if destination is not None:
        return lambda inputs: inputs[destination]
    patterns = [variable.type.broadcastable for variable in node.inputs]
    pattern = tuple(all(axis) for axis in zip(*patterns, strict=True))
    if pattern in patterns:
        model = patterns.index(pattern)
        # In the model's order of axes, so that both are walked alike.
        return lambda inputs: xp.empty_like(inputs[model], dtype, subok=False)
    givers = [next((k for k, p in enumerate(patterns) if not p[axis]), 0) for axis in range(len(pattern))]
    return lambda inputs: xp.empty([inputs[k].shape[axis] for axis, k in enumerate(givers)], dtype)


def _repair(kernel: Any, node: Apply, xp: ModuleType) -> Callable[[Sequence, Sequence], None]:
    """Return what to do when a kernel refuses: say which lengths differ, or bring the arrays in form."""
    check = length_check([variable.type.shape for variable in node.inputs])
    dtypes = [np.dtype(variable.type.dtype) for variable in (*node.inputs, *node.outputs)]

    def plain(array, dtype):
        # The view stands for subclasses, and for dtypes that are equal but have another number.
        return xp.require(array, dtype, "A").view(xp.ndarray).view(dtype)

    def make_fit(inputs, outputs):
        if check is not None:
            check(inputs)
        arrays = [plain(a, dtype) for a, dtype in zip((*inputs, *outputs), dtypes, strict=True)]
        if kernel.function(*arrays):
            shapes = ", ".join(str(np.shape(array)) for array in (*inputs, *outputs))
            raise ValueError(f"shapes {shapes} of inputs and outputs differ, or an output is read-only")
        for output, array in zip(outputs, arrays[len(inputs) :], strict=True):
            if not np.may_share_memory(output, array):
                output[...] = array

    return make_fit


def unfused(node: Apply, xp: ModuleType) -> "Unfused":
    """Return an implementation of a Composite that calls array functions one after another."""
    # Not at the top: the emitter asks this table for its entries.
    from synk.compile.emit import emit

    return Unfused(emit(expand(node), xp), node)


class Unfused:
    """Run the program of an expanded Composite, whose results are fresh, and copy them where they belong.

    Parameters
    ----------
    program : Program
        See `expand`.
    node : Apply
        The Composite's Elemwise, maybe in place.
    """

    def __init__(self, program: Any, node: Apply):
        self.host_nodes = program.host_nodes
        self._program = program
        self._single = len(node.outputs) == 1
        # A 0-d array may arrive as a NumPy scalar, which nothing can be written to.
        self._destinations = node.op.inplace_pattern if node.outputs[0].type.ndim else {}

    def __call__(self, *inputs, out=None):
        results = list(self._program(*inputs))
        if out is None:
            given = {k: inputs[i] for k, i in self._destinations.items()}
        else:
            given = dict(enumerate([out] if self._single else out))
        for k, target in given.items():
            target[...] = results[k]
            results[k] = target
        return results[0] if self._single else tuple(results)


def expand(node: Apply) -> FunctionGraph:
    """Return the graph of an Elemwise node with one Elemwise for each scalar Op, none in place."""
    inputs = [variable.type() for variable in node.inputs]
    outputs = _expand(node.op.scalar_op, inputs)
    pattern = node.outputs[0].type.broadcastable
    fresh: list[Variable] = []
    for output in outputs:
        if output in (*inputs, *fresh) or isinstance(output, Constant):
            output = Elemwise(basic.identity)(output)
        if output.type.broadcastable != pattern:
            # It does not depend on all inputs, but has the common shape.
            for variable in inputs:
                output = Elemwise(basic.second)(variable, output)
        fresh.append(output)
    return FunctionGraph(inputs, fresh, clone=False)


def _expand(scalar_op: Any, inputs: Sequence) -> list:
    if not isinstance(scalar_op, Composite):
        return Elemwise(scalar_op)(*inputs, return_list=True)
    ndim = inputs[0].type.ndim if inputs else 0
    values = dict(zip(scalar_op.fgraph.inputs, inputs, strict=True))

    def value_of(variable):
        if isinstance(variable, Constant):
            return constant(np.asarray(variable.data).reshape((1,) * ndim), dtype=variable.type.dtype)
        return values[variable]

    for node in scalar_op.fgraph.toposort():
        arguments = [value_of(variable) for variable in node.inputs]
        values.update(zip(node.outputs, _expand(node.op, arguments), strict=True))
    return [value_of(variable) for variable in scalar_op.fgraph.outputs]
