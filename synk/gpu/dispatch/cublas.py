"""Matrix products by cuBLAS, where CuPy's own take a detour.

CuPy multiplies batches of float16 as float32, of bfloat16 by a kernel for integers, and of float32 without
TF32 whatever its switch says; and no product of it has results of another dtype than its factors.

    multiply: strides -> element_strides -> matrix_layout -> MatrixLayout, or None: copy it first
                                         -> plan_batch -> CublasBatch -> gemmEx or gemmStridedBatchedEx

A BLAS counts columns first, arrays here rows first, so what it is asked for is ``C.T = B.T @ A.T``: the same
memory, read by columns. Strides are in elements, not in bytes.

Handle, stream and the switch for TF32 are CuPy's, unless another library is put in its place. Scalars are
read from the host, which is how CuPy leaves its handles; that parts of sums stay float32, they are told each
time.
Checked against the signatures of CuPy 14.2 and by a cuBLAS of the tests' own that reads the memory it is
told; unrun on GPUs.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np

# Of CUDA's library_types.h. All of 16 bits accumulate in float32.
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
RESULTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
}
SCALARS = {name: tuple(np.array(value, name) for value in (1, 0)) for name in ("float32", "float64")}
AS_STORED, TRANSPOSED = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, beside the default mode: where kernels share a sum, its
# parts are float32 as it is, though the result has 16 bits.
WHOLE_SUMS = 16


class MatrixLayout(NamedTuple):
    """A matrix as a BLAS knows it, the arguments ``trans`` and ``ld`` of one factor."""

    by_columns: bool  # its columns lie together, so the BLAS must transpose what it reads
    leading: int  # from one row to the next, or one column if those lie together


class CublasBatch(NamedTuple):
    """Calls that together compute a batch."""

    n_matrices: int  # in each call
    steps: tuple[int, ...]  # from one matrix to the next, for each operand; 0 where one serves all
    starts: list[tuple[int, ...]]  # of each call, for each operand


class _Own(threading.local):
    library: Any = None  # makes the products of this thread in the place of CuPy


_own = _Own()


@contextmanager
def multiplied_by(library: Any) -> Iterator[None]:
    """Let ``library``, with methods as of CuPy's module, make the products of this thread meanwhile."""
    _own.library = library
    try:
        yield
    finally:
        _own.library = None


def can_multiply(factors: Any, result: Any) -> bool:
    """Tell whether cuBLAS multiplies two matrices of dtype ``factors`` to one of dtype ``result``."""
    return result.name in RESULTS.get(factors.name, ())


def multiply(xp: Any, left: Any, right: Any, result: Any) -> None:
    """Write ``left @ right`` of shapes (..., m, k) and (..., k, n) to ``result``.

    The factors are of one dtype, with as many axes as ``result``; an axis of the batch may have length 1.
    They are read where they are, transposed or broadcast, and copied if their rows and columns both have
    gaps. The result is in C order, apart from the factors and not empty, and k > 0.
    """
    left, left_strides, left_layout = _readable(xp, left)
    right, right_strides, right_layout = _readable(xp, right)
    result_strides = tuple(stride // result.itemsize for stride in result.strides)
    # Columns first, all is transposed, so the factors change places.
    places = [(right, right_layout.leading), (left, left_layout.leading), (result, result.shape[-1])]
    plan = plan_batch(result.shape[:-2], [s[:-2] for s in (right_strides, left_strides, result_strides)])
    head = (
        xp.cuda.device.get_cublas_handle(),
        *[TRANSPOSED if layout.by_columns else AS_STORED for layout in (right_layout, left_layout)],
        *(result.shape[-1], result.shape[-2], left.shape[-1]),
    )
    compute = compute_type(left.dtype.name)
    for starts in plan.starts:
        operands = [
            (array.data.ptr + start * array.itemsize, DATA_TYPES[array.dtype.name], leading)
            for (array, leading), start in zip(places, starts, strict=True)
        ]
        _call(head, operands, plan.steps, plan.n_matrices, compute)


def _readable(xp: Any, factor: Any) -> tuple[Any, tuple[int, ...], MatrixLayout]:
    """Return a factor that a BLAS can read, or its copy, its strides and its layout."""
    strides = element_strides(factor.shape, factor.strides, factor.itemsize)
    layout = None if strides is None else matrix_layout(factor.shape[-2:], strides[-2:])
    if strides is None or layout is None:
        return _readable(xp, xp.ascontiguousarray(factor))
    return factor, strides, layout


def _call(head: tuple, operands: list, steps: tuple[int, ...], n_matrices: int, compute: int) -> None:
    cublas = _of_cupy()
    library = _own.library or cublas
    if library is cublas:
        cublas.setMathMode(head[0], WHOLE_SUMS)
    one, zero = SCALARS["float64" if compute == cublas.CUBLAS_COMPUTE_64F else "float32"]
    first, second, result = operands
    alpha, beta = one.ctypes.data, zero.ctypes.data
    tail = (compute, cublas.CUBLAS_GEMM_DEFAULT)
    if n_matrices == 1:
        library.gemmEx(*head, alpha, *first, *second, beta, *result, *tail)
        return
    a, b, c = [(*operand, step) for operand, step in zip(operands, steps, strict=True)]
    library.gemmStridedBatchedEx(*head, alpha, *a, *b, beta, *c, n_matrices, *tail)


def compute_type(factors: str) -> int:
    """Return cuBLAS's number of the dtype in which products of factors of a dtype are computed."""
    cublas = _of_cupy()
    if factors == "float64":
        return cublas.CUBLAS_COMPUTE_64F
    if factors == "float32":
        linalg = import_module("cupy._core._routines_linalg")
        # Asked each time: the switch is CuPy's, and so is the memory of what it said.
        if linalg.get_compute_type(factors) == linalg.COMPUTE_TYPE_TF32:
            return cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    return cublas.CUBLAS_COMPUTE_32F


def _of_cupy() -> Any:
    """Return CuPy's module, which finds the library only if it is asked for by its package."""
    return import_module("cupy_backends.cuda.libs").cublas


def element_strides(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, ...] | None:
    """Return strides in elements, or None if one is negative or ends within an element.

    Along an axis of length one nothing is walked; its stride, which may be anything, becomes 0.
    """
    strides = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    if any(stride < 0 or stride % itemsize for stride in strides):
        return None
    return tuple(stride // itemsize for stride in strides)


def matrix_layout(shape: Sequence[int], strides: Sequence[int]) -> MatrixLayout | None:
    """Return how a matrix that is not empty lies in memory, or None if no BLAS can read it there."""
    (rows, columns), (row, column) = shape, strides
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return MatrixLayout(False, row if rows > 1 else columns)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return MatrixLayout(True, column if columns > 1 else rows)
    return None


def plan_batch(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> CublasBatch:
    """Walk the axes of a batch in as few calls as strides allow.

    ``shape`` has no 0, ``strides`` are those of each operand, 0 where it is broadcast. Neighbouring axes are
    one where every operand steps through them evenly. The longest that is left is walked by the BLAS.
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
        return CublasBatch(1, nowhere, [nowhere])
    inner = lengths.index(max(lengths))
    n_matrices, inner_step = lengths.pop(inner), steps.pop(inner)
    starts = [
        tuple(sum(i * step[k] for i, step in zip(index, steps, strict=True)) for k in range(len(strides)))
        for index in product(*map(range, lengths))
    ]
    return CublasBatch(n_matrices, inner_step, starts)
