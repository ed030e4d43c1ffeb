"""Decide how the kernels of `cuda_source` go over arrays, from nothing but their shapes and strides.

    shapes, strides -> lay_out -> LoopLayout: flat or strided, how many blocks, the integers to hand over

Arrays that fill memory in one order, whichever it is, are walked flat. Of others, neighbouring axes that all
arrays go along in equal steps are walked as one, so that the kernel has fewer indices to work out.

Pure arithmetic; imports NumPy and the words of `body`.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from synk.compile.programs.elementwise.body import Operand
from synk.gpu.elementwise.cuda_access import stride_axes
from synk.gpu.elementwise.cuda_packs import pack_width, row_width
from synk.gpu.elementwise.cuda_source import THREADS

AT_ONCE = 8 * 132  # blocks that an H200 holds
MOST_BLOCKS = 32 * AT_ONCE  # the last to end are few among so many; threads take several turns beyond


class LoopLayout(NamedTuple):
    """The way of one launch over its arrays."""

    flat: bool
    blocks: int  # 0 if there is nothing to compute
    integers: tuple[Any, ...]  # the kernel's first arguments


Geometry = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides in bytes


def lay_out(
    operands: Sequence[Operand], arrays: Sequence[Geometry | None], sizes: Sequence[int]
) -> LoopLayout | None:
    """Return the layout of a launch, or None if lengths differ.

    Parameters
    ----------
    operands : sequence of Operand
        Inputs, then outputs.
    arrays : sequence of (shape, strides)
        Of each operand; None for a number that travels with the launch.
    sizes : sequence of int
        Bytes of one element of each.
    """
    lengths = common_lengths(operands, arrays)
    if lengths is None:
        return None
    n = prod(lengths)
    flat = is_flat(lengths, operands, arrays, sizes)
    # Few elements are spread over many threads; of more, each takes a pack.
    width = 1 if n <= AT_ONCE * THREADS else (pack_width if flat else row_width)(operands)
    blocks = min(-(-n // (THREADS * width)), MOST_BLOCKS)
    if flat:
        return LoopLayout(True, blocks, (np.int64(n),))
    strides = [
        [0 if one else step for one, step in zip(operand.broadcast, array[1], strict=True)]
        for operand, array in zip(operands, arrays, strict=True)
        if array is not None and stride_axes(operand)
    ]
    given = [
        array[1][axis]
        for operand, array in zip(operands, arrays, strict=True)
        if array is not None
        for axis in stride_axes(operand)
    ]
    return LoopLayout(False, blocks, tuple(map(np.int64, (n, *joined(lengths, strides), *given))))


def common_lengths(operands: Sequence[Operand], arrays: Sequence[Geometry | None]) -> tuple[int, ...] | None:
    """Return the length of each axis, None if arrays disagree on one."""
    lengths: list[int | None] = [None] * len(operands[-1].broadcast)
    for operand, array in zip(operands, arrays, strict=True):
        if array is None:
            continue
        if len(array[0]) != len(lengths):
            return None
        for axis, (length, one) in enumerate(zip(array[0], operand.broadcast, strict=True)):
            if one:
                if length != 1:
                    return None
            elif lengths[axis] is None:
                lengths[axis] = length
            elif lengths[axis] != length:
                return None
    return tuple(1 if length is None else length for length in lengths)


def is_flat(
    lengths: Sequence[int],
    operands: Sequence[Operand],
    arrays: Sequence[Geometry | None],
    sizes: Sequence[int],
) -> bool:
    """Tell whether all arrays but those of one element fill memory in the same order."""
    axes = [axis for axis, length in enumerate(lengths) if length > 1]
    steps: list[int] = []
    for operand, array, size in zip(operands, arrays, sizes, strict=True):
        if array is None or all(operand.broadcast):
            continue
        if any(operand.broadcast[axis] or array[1][axis] % size for axis in axes):
            return False
        own = [array[1][axis] // size for axis in axes]
        if steps and own != steps:
            return False
        steps = own
    expected = 1
    for step, axis in sorted(zip(steps, axes, strict=False)):
        if step != expected:
            return False
        expected *= lengths[axis]
    return True


def joined(lengths: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """Return the lengths with axes joined: one that is walked with the next to its right has length 1.

    Parameters
    ----------
    lengths : sequence of int
    strides : sequence of sequence of int
        By array and axis; 0 where the array broadcasts.
    """
    lengths = list(lengths)
    inner: int | None = None
    for axis in reversed(range(len(lengths))):
        if lengths[axis] == 1:
            continue
        if inner is not None and all(own[axis] == own[inner] * lengths[inner] for own in strides):
            lengths[inner] *= lengths[axis]
            lengths[axis] = 1
        else:
            inner = axis
    return lengths
