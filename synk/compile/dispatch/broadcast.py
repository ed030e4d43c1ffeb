"""Refuse broadcasting that the graph did not declare.

PyTensor decides from static shapes which axes broadcast, and derives gradients from that. An axis of
unknown length that turns out to be 1 must not broadcast silently: its gradient would be wrong.
"""

from collections.abc import Callable, Sequence

REMEDY = (
    "Runtime broadcasting is not allowed: declare an axis of length 1 in the variable's shape, "
    "or with pytensor.tensor.specify_broadcastable"
)


def length_check(shapes: Sequence[Sequence[int | None]]) -> Callable[[Sequence], None] | None:
    """Return a function that checks that arrays agree in length; None if static shapes guarantee it.

    The function takes the arrays and raises ValueError if their lengths along an axis differ. ``shapes`` has
    for each array the static lengths of the leading axes to check: None is unknown, and 1 broadcasts.
    """
    axes = []
    for axis, lengths in enumerate(zip(*shapes, strict=True)):
        full = [i for i, length in enumerate(lengths) if length != 1]
        if len(full) > 1 and any(lengths[i] is None for i in full):
            axes.append((axis, full))
    if not axes:
        return None

    def check(inputs):
        for axis, (first, *others) in axes:
            length = inputs[first].shape[axis]
            for other in others:
                if inputs[other].shape[axis] != length:
                    raise ValueError(_mismatch(axis, length, inputs[other].shape[axis]))

    return check


def check_fill(static_shape: Sequence[int | None], shape: Sequence[int], target: Sequence[int]) -> None:
    """Raise ValueError if filling ``target`` with a value of ``shape`` would broadcast an undeclared axis.

    ``static_shape`` is that of the value. Axes are aligned at the right, as in NumPy.
    """
    for axis in range(-min(len(shape), len(target)), 0):
        if shape[axis] == 1 != target[axis] and static_shape[axis] != 1:
            raise ValueError(_mismatch(axis, target[axis], 1))


def _mismatch(axis: int, length: int, other: int) -> str:
    message = f"lengths {length} and {other} differ along axis {axis}"
    return f"{message}. {REMEDY}" if 1 in (length, other) else message
