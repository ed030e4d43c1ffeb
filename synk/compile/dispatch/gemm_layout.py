"""How matrices in memory are told to a BLAS: leading dimensions, transposes, steps from matrix to matrix.

A BLAS counts columns first, arrays here rows first, so what it is asked for is ``C.T = B.T @ A.T``: the same
memory, read by columns. Pure arithmetic on shapes and strides; all strides are in elements, not in bytes.

    strides -> element_strides -> matrix_layout -> MatrixLayout, or None: copy it first
                               -> plan_batch -> Batch: one call for the longest axis, again for the others
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple


class MatrixLayout(NamedTuple):
    """A matrix as a BLAS knows it, the arguments ``trans`` and ``ld`` of one factor."""

    by_columns: bool  # its columns lie together, so the BLAS must transpose what it reads
    leading: int  # from one row to the next, or one column if those lie together


class Batch(NamedTuple):
    """Calls that together compute a batch.

    Attributes
    ----------
    n_matrices : int
        Matrices in each call.
    steps : tuple of int
        From one matrix to the next, for each operand; 0 where one serves all.
    starts : list of tuple of int
        Where each call starts, for each operand.
    """

    n_matrices: int
    steps: tuple[int, ...]
    starts: list[tuple[int, ...]]


def element_strides(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, ...] | None:
    """Return strides in elements, or None if one is negative or ends within an element.

    Along an axis of length one nothing is walked; its stride, which may be anything, becomes 0.
    """
    strides = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    if any(stride < 0 or stride % itemsize for stride in strides):
        return None
    return tuple(stride // itemsize for stride in strides)


def matrix_layout(shape: Sequence[int], strides: Sequence[int]) -> MatrixLayout | None:
    """Return how a matrix that is not empty lies in memory, or None if no BLAS can read it there.

    Parameters
    ----------
    shape : (rows, columns)
    strides : (from row to row, from column to column)
    """
    (rows, columns), (row, column) = shape, strides
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return MatrixLayout(False, row if rows > 1 else columns)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return MatrixLayout(True, column if columns > 1 else rows)
    return None


def plan_batch(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Batch:
    """Walk the axes of a batch in as few calls as strides allow.

    Neighbouring axes are one where every operand steps through them evenly. The longest that is left is
    walked by the BLAS.

    Parameters
    ----------
    shape : sequence of int
        Lengths of the axes; no length is 0.
    strides : sequence of sequence of int
        Of each operand along these axes; 0 where it is broadcast.
    """
    lengths: list[int] = []
    steps: list[tuple[int, ...]] = []
    for length, step in zip(shape, zip(*strides, strict=True), strict=True):
        if length == 1:
            continue
        if steps and steps[-1] == tuple(length * s for s in step):
            lengths[-1], steps[-1] = lengths[-1] * length, step
        else:
            lengths.append(length)
            steps.append(step)
    if not lengths:
        nowhere = (0,) * len(strides)
        return Batch(1, nowhere, [nowhere])
    inner = lengths.index(max(lengths))
    n_matrices, inner_step = lengths.pop(inner), steps.pop(inner)
    starts = [
        tuple(sum(i * step[k] for i, step in zip(index, steps, strict=True)) for k in range(len(strides)))
        for index in product(*map(range, lengths))
    ]
    return Batch(n_matrices, inner_step, starts)
