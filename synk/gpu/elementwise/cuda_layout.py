"""Decide from shapes and strides how a launch of a kernel of `cuda_source` loops over its arrays.

    shapes, strides -> lay_out -> LoopLayout: flat or strided, how many blocks, the integer arguments

If all arrays fill memory without gaps and in the same order of axes, the loop is flat. Otherwise neighbouring
axes are merged where every array has even strides across both, so that the kernel computes fewer indices.

This is arithmetic that needs no GPU.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from synk.compile.programs.elementwise.body import Operand
from synk.gpu.elementwise.cuda_access import stride_axes
from synk.gpu.elementwise.cuda_packs import pack_width, row_width
from synk.gpu.elementwise.cuda_source import THREADS

AT_ONCE = 8 * 132  # blocks that run on an H200 at the same time
MOST_BLOCKS = 32 * AT_ONCE  # so many that few are left to wait for at the end; beyond, threads loop


class LoopLayout(NamedTuple):
    """The loop of one launch over its arrays."""

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
        Of each operand; None for a number that is passed by value.
    sizes : sequence of int
        Bytes of one element of each.
    """
    lengths = common_lengths(operands, arrays)
    if lengths is None:
        return None
    n = prod(lengths)
    flat = is_flat(lengths, operands, arrays, sizes)
    # Few elements are spread over as many threads; with more elements, each thread takes a pack of them.
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
    """Return the length of each axis, or None if arrays disagree on one."""
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
    """Return whether all arrays, except those of one element, fill memory in the same order of axes."""
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
    """Merge axes where strides allow it: return lengths, 1 for an axis that is merged with a later one.

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
