"""Matrix products by calls of cuBLAS, where CuPy's own products take a slow way.

CuPy multiplies batches of float16 as float32, batches of bfloat16 by a kernel for integers, and batches of
float32 without TF32 even if that is switched on; and its products cannot have a result of another dtype than
the factors.

    multiply: strides -> element_strides -> matrix_layout -> MatrixLayout, or None: copy it first
                                         -> plan_batch -> CublasBatch -> gemmEx or gemmStridedBatchedEx

A BLAS stores matrices by columns, while arrays here are stored by rows. So it is asked for ``C.T = B.T @
A.T``, which is the same memory read by columns. Strides are in elements, not in bytes.

Handle, stream and the switch for TF32 are CuPy's, unless `multiplied_by` puts another library in its place.
cuBLAS reads scalars from the host, as CuPy sets its handles. The mode that keeps parts of sums in float32 is
set before each product. This was checked against the signatures of CuPy 14.2, and with the tests' own
replacement of cuBLAS, which reads the addresses that it is given; it is unrun on GPUs.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np

# Numbers of CUDA's library_types.h. Products of 16-bit factors accumulate in float32.
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
RESULTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
}
SCALARS = {name: tuple(np.array(value, name) for value in (1, 0)) for name in ("float32", "float64")}
AS_STORED, TRANSPOSED = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, beside the default mode: where several blocks compute
# parts of one sum, the parts stay float32 even if the result has 16 bits.
WHOLE_SUMS = 16


class MatrixLayout(NamedTuple):
    """The order of a factor in memory, as the arguments ``trans`` and ``ld`` of a BLAS."""

    by_columns: bool  # elements of a column are adjacent, so the BLAS must transpose
    leading: int  # stride from one row to the next, or, by columns, from one column to the next


class CublasBatch(NamedTuple):
    """The calls of cuBLAS that together compute a batch of products."""

    n_matrices: int  # in each call
    steps: tuple[int, ...]  # from one matrix to the next, for each operand; 0 where one serves all
    starts: list[tuple[int, ...]]  # of each call, for each operand


class _Own(threading.local):
    library: Any = None  # makes the products of this thread in the place of CuPy


_own = _Own()


@contextmanager
def multiplied_by(library: Any) -> Iterator[None]:
    """Return a context in which ``library``, in place of CuPy's module, multiplies for this thread."""
    _own.library = library
    try:
        yield
    finally:
        _own.library = None


def can_multiply(factors: Any, result: Any) -> bool:
    """Return whether cuBLAS can multiply matrices of dtype ``factors`` into one of dtype ``result``."""
    return result.name in RESULTS.get(factors.name, ())


def multiply(xp: Any, left: Any, right: Any, result: Any) -> None:
    """Write ``left @ right`` of shapes (..., m, k) and (..., k, n) to ``result``.

    The factors are of one dtype, with as many axes as ``result``; an axis of the batch may have length 1.
    Factors may be transposed or broadcast views; one whose elements are adjacent along neither rows nor
    columns is copied first. The result is in C order, not empty, and shares no memory with the factors; k >
    0.
    """
    left, left_strides, left_layout = _readable(xp, left)
    right, right_strides, right_layout = _readable(xp, right)
    result_strides = tuple(stride // result.itemsize for stride in result.strides)
    # The BLAS computes the transposed product, so the factors are exchanged.
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
    """Return a factor, or a copy of it, that a BLAS can read, with its strides and its layout."""
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
    """Return cuBLAS's number for the arithmetic of products whose factors have this dtype."""
    cublas = _of_cupy()
    if factors == "float64":
        return cublas.CUBLAS_COMPUTE_64F
    if factors == "float32":
        linalg = import_module("cupy._core._routines_linalg")
        # CuPy is asked each time: its switch may have changed, and it keeps the answer itself.
        if linalg.get_compute_type(factors) == linalg.COMPUTE_TYPE_TF32:
            return cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    return cublas.CUBLAS_COMPUTE_32F


def _of_cupy() -> Any:
    """Return CuPy's module for cuBLAS; imported by its own name, it would not find the library."""
    return import_module("cupy_backends.cuda.libs").cublas


def element_strides(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, ...] | None:
    """Return strides in elements, or None if one is negative or ends within an element.

    The stride of an axis of length one is never used and may be any number; it becomes 0.
    """
    strides = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    if any(stride < 0 or stride % itemsize for stride in strides):
        return None
    return tuple(stride // itemsize for stride in strides)


def matrix_layout(shape: Sequence[int], strides: Sequence[int]) -> MatrixLayout | None:
    """Return how a non-empty matrix lies in memory, or None if no BLAS can read it without a copy."""
    (rows, columns), (row, column) = shape, strides
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return MatrixLayout(False, row if rows > 1 else columns)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return MatrixLayout(True, column if columns > 1 else rows)
    return None


def plan_batch(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> CublasBatch:
    """Return calls that compute a batch of any number of axes, as few as the strides allow.

    ``shape`` has no 0; ``strides`` are those of each operand, 0 where it is broadcast. Neighbouring axes are
    merged where every operand has even strides along both. Each call then covers the longest axis that is
    left.
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
