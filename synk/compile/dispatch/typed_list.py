"""Entries for typed lists: Python lists of arrays, or of lists.

The list that an implementation returns is new, or the input that the Op destroys. Its elements may be those
of the first input's list, as the Op's ``view_map`` says, and are copies of all other values.
"""

from pytensor.tensor.type import DenseTensorType
from pytensor.typed_list.basic import (
    Append,
    Count,
    Extend,
    GetItem,
    Index,
    Insert,
    Length,
    MakeList,
    Remove,
    Reverse,
)
from pytensor.typed_list.type import TypedListType

from synk.compile.dispatch.graph_ops import copy_value
from synk.compile.tables import array_funcify


@array_funcify.register(MakeList)
def make_list(op, node, xp):
    """Make a list of values."""
    copies = [_copier(variable.type, xp) for variable in node.inputs]
    return lambda *values: [copy(value) for copy, value in zip(copies, values, strict=True)]


@array_funcify.register(Append)
@array_funcify.register(Insert)
def insert(op, node, xp):
    """Return the list with one element more, before the one at an index, or at the end."""
    copy = _copier(node.inputs[-1].type, xp)
    if isinstance(op, Append):
        return _changed(op, lambda x, value: x.append(copy(value)))
    return _changed(op, lambda x, index, value: x.insert(int(index), copy(value)))


@array_funcify.register(Extend)
def extend(op, node, xp):
    """Return the list with the elements of another list behind its own."""
    copy = _copier(node.inputs[1].type.ttype, xp)
    return _changed(op, lambda x, values: x.extend([copy(value) for value in values]))


@array_funcify.register(Remove)
def remove(op, node, xp):
    """Return the list without the first element that equals a value, if there is one."""
    places = _finder(node)

    def change(x, value):
        for i in places(x, value)[:1]:
            del x[i]

    return _changed(op, change)


@array_funcify.register(Index)
def index_of(op, node, xp):
    """Return the index of the first element that equals a value."""
    places = _finder(node)

    def find(x, value):
        found = places(x, value)
        if not found:
            raise ValueError("the value is not in the list; ask for its count first")
        return xp.asarray(found[0], dtype="int64")

    return find


@array_funcify.register(Count)
def count(op, node, xp):
    """Return the number of elements that equal a value."""
    places = _finder(node)
    return lambda x, value: xp.asarray(len(places(x, value)), dtype="int64")


def _finder(node):
    """Return a function that takes a list and a value, and returns the indices of elements equal to it."""
    same = equality(node.inputs[0].type.ttype)
    return lambda x, value: [i for i, element in enumerate(x) if same(element, value)]


def equality(element_type):
    """Return the function that compares two values of a type; lists by their elements, and NaN equals NaN."""
    if isinstance(element_type, TypedListType):
        same = equality(element_type.ttype)
        return lambda a, b: len(a) == len(b) and all(map(same, a, b))
    return equal_arrays if isinstance(element_type, DenseTensorType) else element_type.values_eq


def equal_arrays(a, b) -> bool:
    """Say whether two arrays agree in dtype, shape and values; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _changed(op, change):
    """Return an implementation that applies ``change`` to the first input's list, or to a copy of it."""

    def apply(x, *arguments):
        result = x if op.inplace else list(x)
        change(result, *arguments)
        return result

    return apply


def _copier(element_type, xp):
    """Return the function that copies elements of a type; NumPy scalars become 0-d arrays."""
    return xp.array if isinstance(element_type, DenseTensorType) else copy_value


ENTRIES = {
    # An element, or a list of some.
    GetItem: lambda op, node, xp: lambda x, index: x[index if isinstance(index, slice) else int(index)],
    Length: lambda op, node, xp: lambda x: xp.asarray(len(x), dtype="int64"),
    Reverse: lambda op, node, xp: _changed(op, list.reverse),
}

for op_class, entry in ENTRIES.items():
    array_funcify.register(op_class, entry)
