"""Find the shapes of a graph's variables before anything is computed, as far as shared variables show them.

results -> forward: PyTensor's shape inference, from the shapes of shared variables
        -> backward: the inputs of an elementwise Op have the lengths of its output
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.type import TensorType

from synk.compile.compat import inferred_shape
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collectives import AllReduceOp

Shape = tuple[int | None, ...]


def known_shapes(
    results: Sequence[Variable],
    known: Mapping[Variable, Shape],
    of_rank: Collection[Variable],
    wanted: Collection[Variable],
) -> dict[Variable, Shape]:
    """Return the shapes of variables that lead to results, among them the ``wanted`` ones if they are known.

    An unknown length is None. ``known`` are shapes of some results. Variables ``of_rank`` have each rank's
    rows along axis 0, so their lengths along it are unknown.
    """
    nodes = topological(results)[::-1]
    shapes = dict(known)
    for node in nodes:
        backward(node, shapes)
    if all(None not in shapes.get(variable, (None,)) for variable in wanted):
        return shapes
    # Shape inference comes second only, because it takes milliseconds for each node.
    with pytensor.config.change_flags(traceback__limit=0):
        shapes = forward(results, of_rank)
    for variable, shape in known.items():
        learn(shapes, variable, shape)
    for node in nodes:
        backward(node, shapes)
    return shapes


def forward(results: Sequence[Variable], of_rank: Collection[Variable]) -> dict[Variable, Shape]:
    """Return the shapes that follow from those of shared variables and from constants, by variable."""
    feature = ShapeFeature()
    graph = FunctionGraph(outputs=list(results), clone=False, features=[feature])
    lengths = SymbolicLengths(of_rank)
    tensors = [variable for variable in graph.variables if isinstance(variable.type, TensorType)]
    shapes = [(variable, inferred_shape(feature, variable)) for variable in tensors]
    return {variable: tuple(map(lengths.of, shape)) for variable, shape in shapes if shape is not None}


class SymbolicLengths:
    """The numbers that symbolic lengths stand for, as far as shared variables and constants show them."""

    def __init__(self, of_rank: Collection[Variable]):
        self._of_rank = of_rank
        self._values: dict[Variable, Any] = {}

    def of(self, length: Variable) -> int | None:
        """Return a length, or None if it is not known."""
        value = self._value(length)
        return None if value is None else int(value)

    def _value(self, variable: Variable) -> Any:
        if isinstance(variable, Constant):
            return variable.data
        if variable.owner is None:
            return None
        if variable not in self._values:
            self._values[variable] = self._computed(variable.owner, variable)
        return self._values[variable]

    def _computed(self, node: Apply, variable: Variable) -> Any:
        if isinstance(node.op, Shape_i):
            return self._axis(node.inputs[0], node.op.i)
        values = [self._value(one) for one in node.inputs]
        if any(value is None for value in values) or not isinstance(variable.type, TensorType):
            return None
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        node.op.perform(node, [np.asarray(value) for value in values], storage)
        return storage[node.outputs.index(variable)][0]

    def _axis(self, variable: Any, axis: int) -> int | None:
        if variable in self._of_rank and axis == 0:
            return None
        if isinstance(variable, SharedVariable):
            return np.shape(variable.get_value(borrow=True))[axis]
        return variable.type.shape[axis]


def backward(node: Apply, shapes: dict[Variable, Shape]) -> None:
    """Enter in ``shapes`` the shapes of a node's inputs that follow from the shape of its output."""
    if isinstance(node.op, AllReduceOp):
        for value, result in zip(node.inputs, node.outputs, strict=False):
            if result in shapes:
                learn(shapes, value, shapes[result])
    elif isinstance(node.op, DimShuffle):
        (value,), shape = node.inputs, shapes.get(node.outputs[0])
        if shape is None:
            return
        lengths: list[int | None] = [1] * value.type.ndim
        for axis, length in zip(node.op.new_order, shape, strict=True):
            if axis != "x":
                lengths[axis] = length
        learn(shapes, value, tuple(lengths))
    elif isinstance(node.op, Elemwise) and (shape := shapes.get(node.outputs[0])) is not None:
        for value in node.inputs:
            alike = zip(value.type.broadcastable, shape, strict=True)
            learn(shapes, value, tuple(1 if single else length for single, length in alike))


def learn(shapes: dict[Variable, Shape], variable: Variable, shape: Shape) -> None:
    """Enter the lengths of a variable's ``shape`` that are not known in ``shapes`` yet."""
    before = shapes.get(variable)
    if before is None or len(before) != len(shape):
        if isinstance(variable.type, TensorType) and len(shape) == variable.type.ndim:
            shapes.setdefault(variable, shape)
        return
    pairs = zip(before, shape, strict=True)
    shapes[variable] = tuple(one if one is not None else other for one, other in pairs)


def n_bytes(variable: Any, shape: Shape | None) -> int | None:
    """Return the bytes of an array of this shape and the variable's dtype; None if a length is unknown."""
    if shape is None or None in shape:
        return None
    return (
        int(np.prod([length or 0 for length in shape], dtype=np.int64))
        * np.dtype(variable.type.dtype).itemsize
    )
