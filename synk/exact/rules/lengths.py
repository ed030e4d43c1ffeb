"""Rules of Ops that return lengths and shapes, and of Ops that make an array of a given shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import Cast, Mul
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ARange,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type_other import NoneConst

from synk.exact.rules.relations import (
    EACH,
    SAME,
    SCALED,
    Count,
    Counts,
    Own,
    Partial,
    RowNumbers,
    Rows,
    as_rows,
    common_part,
    rows_along,
    selected,
)
from synk.exact.rules.table import Instead, Outcome, Relations, relate


@relate.register(Shape)
def shape(op: Any, node: Apply, given: Relations) -> Outcome:
    """Relate a shape: with an axis of rows it has this rank's number of them, else it is `SAME`."""
    one = as_rows(given[0])
    if isinstance(one, Rows):
        lengths = [None] * node.inputs[0].type.ndim
        lengths[one.axis] = one.length
        return given, [Counts(tuple(lengths))]
    return given, [SAME]


@relate.register(Shape_i)
def shape_i(op: Any, node: Apply, given: Relations) -> Outcome:
    """Relate one length of a shape: it is this rank's number of rows, or the same on all ranks."""
    one = as_rows(given[0])
    return given, [Count(one.length) if isinstance(one, Rows) and one.axis == op.i else SAME]


@relate.register(MakeVector)
def make_vector(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let lengths make a shape, of which some may be numbers of rows; parts of a sum stay parts."""
    counts = [isinstance(one, Count) for one in given]
    if all(one == SAME or counts[k] for k, one in enumerate(given)):
        return given, [Counts(tuple(one.length if isinstance(one, Count) else None for one in given))]
    part = common_part(given)
    return None if part is None else ([part] * len(given), [part])


@relate.register(ARange)
def arange(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let ``arange(n)`` be the numbers of this rank's rows if ``n`` is how many it has."""
    start, _, step = node.inputs
    plain = [
        given[0] == SAME and _is(start, 0),
        isinstance(given[1], Count),
        given[2] == SAME and _is(step, 1),
    ]
    return (given, [RowNumbers(EACH)]) if all(plain) and given[1].length == EACH else None


@relate.register(Alloc)
@relate.register(AllocEmpty)
def alloc(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a length that is a number of rows make an axis of rows; a repeated part of a sum stays a part."""
    value, lengths = (given[0], given[1:]) if isinstance(op, Alloc) else (SAME, given)
    counts = [(axis, one.length) for axis, one in enumerate(lengths) if isinstance(one, Count)]
    others = all(one == SAME or isinstance(one, Count) for one in lengths)
    if not others or len(counts) > 1:
        return None
    if not counts:
        return (given, [value]) if isinstance(value, Partial) else None
    ((axis, length),) = counts
    inside = axis - (node.outputs[0].type.ndim - node.inputs[0].type.ndim) if isinstance(op, Alloc) else -1
    wanted = [rows_along(node.inputs[0], inside, length)] if isinstance(op, Alloc) else []
    return [*wanted, *lengths], [Rows(axis, length)]


@relate.register(Reshape)
def reshape(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows, along the result's first axis not of length 1; a part of a sum stays a part."""
    value, lengths = given
    if isinstance(value, Partial) and lengths == SAME:
        return given, given[:1]
    if not isinstance(value, Rows) or any(not one for one in node.inputs[0].type.broadcastable[: value.axis]):
        return None
    axis = _leading(node)
    if axis is None or axis >= node.outputs[0].type.ndim:
        return None
    if isinstance(lengths, Counts):
        others = (one for k, one in enumerate(lengths.lengths) if k != axis)
        length = lengths.lengths[axis]
        if length is None or any(one is not None for one in others):
            return None
        if length != value.length and (selected(value) or not isinstance(length, str)):
            return None  # nobody but the rank knows how many rows it has selected
        if length == value.length and (inferred := _inferred(node, value.axis, axis)) is not None:
            return Instead([node.inputs[0].reshape(inferred)])
        return given, [Rows(axis, length)]
    elements = _elements(node.inputs[1])
    if lengths == SAME and elements is not None and _is(elements[axis], -1) and not selected(value):
        rows_of_each = _rows_of_each(node, elements, value.axis, axis)
        if rows_of_each is None:
            return None
        return given, [Rows(axis, value.length if rows_of_each == 1 else SCALED)]
    return None


def _inferred(node: Apply, before: int, after: int) -> list[Any] | None:
    """Return the lengths of a reshape with its -1 written out; None if it has none.

    ``before`` and ``after`` are the axis of rows in the array and in the result. On a rank without rows the
    array has no elements, and no length can be inferred from them.
    """
    x, shape = node.inputs
    elements = _elements(shape) or []
    missing = [k for k, one in enumerate(elements) if k != after and _is(one, -1)]
    if not missing:
        return None
    known = [one for k, one in enumerate(elements) if k not in (after, *missing)]
    of_a_row = math.prod([x.shape[axis] for axis in range(x.type.ndim) if axis != before])
    elements[missing[0]] = of_a_row // pt.maximum(math.prod(known), 1) if known else of_a_row
    return elements


def _rows_of_each(node: Apply, elements: list[Any], before: int, after: int) -> Any:
    """Return the number of rows of the reshaped value that one row becomes; `SCALED` if it is not known.

    Return None if it is known to be no whole number. If lengths are unknown, as in a batch of images in rows,
    a whole number is assumed, since it would cost too much to gather all rows; a rank whose elements do not
    fit then raises an error.
    """
    x = node.inputs[0]
    inner = {axis: length for axis, length in enumerate(x.type.shape) if axis != before}
    size = 1
    for one in _factors(one for k, one in enumerate(elements) if k != after):
        if isinstance(one, Variable):
            if (axis := _axis_of(one, x)) not in inner:
                return None
            del inner[axis]
        else:
            size *= int(one)
    if None in inner.values():
        return SCALED
    n_elements = math.prod(length or 0 for length in inner.values())
    return n_elements // size if size and n_elements % size == 0 else None


def _factors(lengths: Iterable[Any]) -> Iterator[Any]:
    """Yield the factors of a product of ``lengths``: numbers, and variables that are no products."""
    for length in map(_unconverted, lengths):
        node = getattr(length, "owner", None)
        if node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Mul):
            yield from _factors(node.inputs)
        else:
            yield length


def _axis_of(length: Variable, x: Variable) -> int | None:
    """Return the axis of ``x`` that has this length; None if it is not known to have one."""
    node = length.owner
    if node is None or not isinstance(node.op, Subtensor | Shape_i):
        return None
    if isinstance(node.op, Shape_i):
        of, axis = node.inputs[0], node.op.i
    else:
        shape, *at = node.inputs
        position = _unconverted(at[0]) if len(at) == 1 else None
        if (
            shape.owner is None
            or not isinstance(shape.owner.op, Shape)
            or isinstance(position, Variable | None)
        ):
            return None
        of, axis = shape.owner.inputs[0], int(position) % x.type.ndim
    return axis if _shaped_as(of) is _shaped_as(x) else None


def _shaped_as(x: Variable) -> Variable:
    """Return the start of a chain of elementwise Ops with one input, which has the same shape as ``x``."""
    while x.owner is not None and isinstance(x.owner.op, Elemwise) and len(x.owner.inputs) == 1:
        (x,) = x.owner.inputs
    return x


def _leading(node: Apply) -> int | None:
    """Return the first axis of a reshaped value that is not of length 1."""
    elements = _elements(node.inputs[1])
    if elements is None:
        return 0
    return next((axis for axis, one in enumerate(elements) if not _is(one, 1)), None)


def _elements(shape: Any) -> list[Any] | None:
    """Return the lengths in a shape one by one; None if they are not known separately."""
    if isinstance(shape, Constant):
        return list(shape.data)
    if shape.owner is not None and isinstance(shape.owner.op, MakeVector):
        return list(shape.owner.inputs)
    return None


def _is(variable: Any, number: int) -> bool:
    """Tell whether a length is a constant equal to ``number``."""
    value = _unconverted(variable)
    return not isinstance(value, Variable) and int(value) == number


def _unconverted(length: Any) -> Any:
    """Return a length without its conversions: its number if it is constant, else a variable."""
    while getattr(length, "owner", None) is not None and _converts(length.owner.op):
        (length,) = length.owner.inputs
    return length.data if isinstance(length, Constant) else length


def _converts(op: Any) -> bool:
    cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
    return cast or isinstance(op, ScalarFromTensor | TensorFromScalar)


@relate.register(SpecifyShape)
def specify_shape(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let the value keep its relation, unless the Op fixes the number of rows, which ranks do not have."""
    value, *lengths = given
    if isinstance(value, Rows):
        said = node.inputs[1 + value.axis]
        free = said is NoneConst or (isinstance(said, Constant) and said.data is None)
        if not (free or isinstance(lengths[value.axis], Count)):
            return None
    if isinstance(value, Own) or any(isinstance(one, Partial | Rows) for one in lengths):
        return None
    return given, [value]
