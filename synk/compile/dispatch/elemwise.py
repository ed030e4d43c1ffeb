"""Entry for Elemwise: a scalar Op over whole arrays, in place where the graph allows it.

Where an array module has kernels, a Composite is computed by one, and so is a scalar Op that array functions
are slow at; ``array_scalar`` says how to compute any other. This file chooses, and adds the check of lengths
and the ``out=`` of in-place patterns. If there is no kernel, the scalar Ops of a Composite run one after
another on whole arrays:

    node -> expand: a graph with an Elemwise for each scalar Op -> emit -> Unfused
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic, math
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import Elemwise

from synk.compile.array_modules import array_module
from synk.compile.dispatch.broadcast import length_check
from synk.compile.host_call import HostCall
from synk.compile.programs.emit import emit
from synk.compile.tables import accepts_out, array_funcify, array_scalar, takes_out

# Without a ufunc they take several passes over memory, or the ufunc computes one number at a time.
KERNEL_ALONE = (
    basic.ArcTan2,
    basic.Clip,
    basic.RoundHalfAwayFromZero,
    basic.Switch,
    math.Erf,
    math.Erfc,
    math.Log1mexp,
    math.Sigmoid,
    math.Softplus,
)


@array_funcify.register(Elemwise)
def elemwise(op, node, xp):
    """Apply a scalar Op to every element."""
    composite = isinstance(op.scalar_op, Composite)
    without_kernel = unfused if composite else _by_array_functions
    if composite or (node.outputs[0].type.ndim and isinstance(op.scalar_op, KERNEL_ALONE)):
        kernel = array_module(xp).elementwise(node, partial(without_kernel, node, xp))
        if kernel is not None:
            return kernel
    return without_kernel(node, xp)


def _by_array_functions(node, xp):
    function = array_scalar(node.op.scalar_op, node, xp)
    return HostCall(node, xp) if function is None else _in_place(function, node, xp)


def _in_place(function, node, xp):
    """Add the check of lengths to a function, and write to the inputs that the Op overwrites."""
    destinations = node.op.inplace_pattern
    # A 0-d array may arrive as a NumPy scalar, which nothing can be written to.
    if node.outputs[0].type.ndim == 0:
        destinations = {}
    direct = accepts_out(function, xp)
    if not direct:
        function = _copying(function, len(node.outputs))
    check = length_check([variable.type.shape for variable in node.inputs])
    if check is None and not destinations:
        return function
    single, places = len(node.outputs) == 1, [destinations.get(i) for i in range(len(node.outputs))]

    def checked(*inputs, out=None):
        if check is not None:
            check(inputs)
        if out is None and destinations:
            out = tuple([None if place is None else inputs[place] for place in places])
            out = out[0] if single else out
        return function(*inputs, out=out)

    return takes_out(checked) if direct else checked


def _copying(function, n_outputs):
    """Return a function that takes ``out=``, given one that only returns new arrays."""

    def call(*inputs, out=None):
        results = function(*inputs)
        if out is None:
            return results
        if n_outputs == 1:
            return _written(out[0] if isinstance(out, tuple) else out, results)
        return tuple([_written(target, result) for target, result in zip(out, results, strict=True)])

    return call


def _written(target, result):
    if target is None:
        return result
    target[...] = result
    return target


def unfused(node: Apply, xp: ModuleType) -> "Unfused":
    """Return an implementation of a Composite that calls array functions one after another."""
    return Unfused(emit(expand(node), xp), node)


class Unfused:
    """Run the program of an expanded Composite, and copy its results to the arrays given for them."""

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
    """Return a graph that computes an Elemwise node by one Elemwise for each scalar Op, none in place."""
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
