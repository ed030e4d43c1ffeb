"""Composites without a kernel: their scalar Ops, one after another on whole arrays.

node -> expand: a graph with an Elemwise for each scalar Op -> emit -> Unfused
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import Elemwise

from synk.compile.emit import emit


def unfused(node: Apply, xp: ModuleType) -> "Unfused":
    """Return an implementation of a Composite that calls array functions one after another."""
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
