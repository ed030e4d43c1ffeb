"""Entries for indexing: read, set and increment, by slices and by arrays.

``idx_list`` describes the index: an int in it stands for the input with that number among those of the index,
and so do the ints in a slice.
"""

from operator import index as as_int

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1
from synk.compile.dispatch.broadcast import check_fill
from synk.compile.tables import array_funcify


@array_funcify.register(Subtensor)
def subtensor(op, node, xp):
    """Return ``x[slices]``, a view."""
    build = index_builder(op.idx_list, node.inputs[1:], as_int)
    return lambda x, *positions: x[build(positions)]


@array_funcify.register(IncSubtensor)
def inc_subtensor(op, node, xp):
    """Return ``x`` with ``x[slices]`` set to, or increased by, ``y``."""
    build = index_builder(op.idx_list, node.inputs[2:], as_int)
    inplace, sets = op.inplace, op.set_instead_of_inc

    def write(x, y, *positions):
        if not inplace or not x.ndim:
            x = xp.array(x)
        if sets:
            x[build(positions)] = y
        else:
            x[build(positions)] += y
        return x

    return write


@array_funcify.register(AdvancedSubtensor)
def advanced_subtensor(op, node, xp):
    """Return ``x[arrays]``, a copy."""
    build = index_builder(op.idx_list, node.inputs[1:])
    # Without an array among the indices NumPy returns a view, which the Op does not declare.
    copies = not any(getattr(variable.type, "ndim", 0) for variable in node.inputs[1:])

    def read(x, *positions):
        result = x[build(positions)]
        return result.copy() if copies else result

    return read


@array_funcify.register(AdvancedIncSubtensor)
def advanced_inc_subtensor(op, node, xp):
    """Return ``x`` with ``x[arrays]`` set to, or increased by, ``y``."""
    build = index_builder(op.idx_list, node.inputs[2:])
    adds_once = op.ignore_duplicates
    rows = op.idx_list == (0,) and _is_integer_vector(node.inputs[2])
    return _scatter(op, node, xp, build, adds_once, rows)


@array_funcify.register(AdvancedSubtensor1)
def take_rows(op, node, xp):
    """Return ``x[rows]``, a copy."""
    return lambda x, rows: x.take(rows, axis=0)


@array_funcify.register(AdvancedIncSubtensor1)
def scatter_rows(op, node, xp):
    """Return ``x`` with ``x[rows]`` set to, or increased by, ``y``."""
    return _scatter(op, node, xp, lambda positions: positions, False, True)


def _scatter(op, node, xp, build, adds_once, rows):
    """Return an implementation that writes ``y`` at array indices of ``x``, or adds it there.

    Repeated indices add up, unless ``adds_once``. ``rows`` says that the index is one vector of row numbers.
    """
    inplace, sets = op.inplace, op.set_instead_of_inc
    static = node.inputs[1].type.shape

    def write(x, y, *positions):
        if rows:
            check_fill(static, y.shape, (len(positions[0]), *x.shape[1:]))
        if not inplace:
            x = x.copy()
        if sets:
            x[build(positions)] = y
        elif adds_once:
            x[build(positions)] += y
        elif rows and xp is np and x.ndim > 1 and x.flags.c_contiguous:
            _add_rows(x, positions[0], y)
        else:
            xp.add.at(x, build(positions), y)
        return x

    return write


def _add_rows(x, rows, y):
    """Add rows of ``y`` to rows of ``x``, which is in C order; number by number, four times as fast."""
    if len(rows) and not -len(x) <= rows.min() <= rows.max() < len(x):
        raise IndexError(f"rows {rows.min()} to {rows.max()} are out of bounds for {len(x)} rows")
    width = int(np.prod(x.shape[1:]))
    # A negative row starts as far from the end of the memory as it should.
    places = (rows.astype(np.int64) * width)[:, None] + np.arange(width)
    np.add.at(x.reshape(-1), places.reshape(-1), np.broadcast_to(y, (len(rows), *x.shape[1:])).reshape(-1))


def index_builder(idx_list, inputs, convert=lambda position: position):
    """Return a function that makes the index from the values of its ``inputs``.

    ``convert`` is applied to entries that are not slices. If all inputs are constants, the index is made
    once.
    """

    def build(values):
        return tuple([convert(values[e]) if isinstance(e, int) else _slice(e, values) for e in idx_list])

    # Not with arrays among them: where device and host differ, the program copies those to the device.
    if all(isinstance(variable, Constant) and not getattr(variable.type, "ndim", 0) for variable in inputs):
        fixed = build([variable.data for variable in inputs])
        return lambda values: fixed
    return build


def _slice(entry: slice, values) -> slice:
    ends = (entry.start, entry.stop, entry.step)
    return slice(*[None if end is None else values[end] for end in ends])


def _is_integer_vector(variable) -> bool:
    return getattr(variable.type, "ndim", 0) == 1 and np.dtype(variable.type.dtype).kind in "iu"
