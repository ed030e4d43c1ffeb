"""Products of float32 matrices by oneDNN, where they take less time than by NumPy's BLAS.

    this processor, BLAS's threads -> faster_products() -> Products, or None
    x, y -> Products -> by oneDNN, if the sizes are in the table; else as ``np.dot`` does it

What is faster is a table, `FASTER`, which ``benchmarks/products.py`` measured: nothing is measured while
programs run, so one machine makes the same bits each time. oneDNN computes in one thread here, because
OpenMP's threads do not survive a fork; where BLAS has more, it keeps all products.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from synk.compile.native.find_onednn import find

FLOAT32, SIZE = np.dtype("float32"), 4  # bytes


class Sizes(NamedTuple):
    """The sizes of products that oneDNN computes in less time than OpenBLAS."""

    rows: int  # of the result, at least
    columns: int
    least: int  # multiplications
    most: int


# By vendor and instruction set, as /proc/cpuinfo names them.
FASTER = {
    ("GenuineIntel", "avx512f"): Sizes(rows=2, columns=8, least=1_500_000, most=1 << 28),
    ("AuthenticAMD", "avx512f"): Sizes(rows=16, columns=64, least=2_000_000, most=1 << 28),
}


class Pointers(ctypes.Structure):
    """The C struct ``onednn`` that compiled regions read: oneDNN's functions, and the sizes to call them for.

    Without oneDNN all of its fields are 0.
    """

    _fields_ = (
        ("multiply", ctypes.c_void_p),
        ("get_threads", ctypes.c_void_p),
        ("set_threads", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in Sizes._fields),
    )


class Products:
    """The function ``dot(x, y, out=None)``: the product of two matrices of float32.

    Parameters
    ----------
    library : ctypes.CDLL
        oneDNN. AttributeError if it has no OpenMP.
    sizes : Sizes
        The products that oneDNN computes; ``np.dot`` computes the others.
    """

    takes_out = True  # the mark of synk.compile.tables
    ARGUMENTS: tuple[Any, ...] = (
        *[ctypes.c_char] * 2,  # how the factors lie
        *[ctypes.c_int64] * 3,  # rows, columns, inner length
        *[ctypes.c_float, *[ctypes.c_void_p, ctypes.c_int64] * 2],  # alpha, x, y
        *[ctypes.c_float, ctypes.c_void_p, ctypes.c_int64],  # beta, result
    )

    def __init__(self, library: ctypes.CDLL, sizes: Sizes):
        # Indexing gives new function objects, so these declarations leave those of convolutions alone.
        self._multiply: Any = library["dnnl_sgemm"]
        self._get_threads: Any = library["omp_get_max_threads"]
        self._set_threads: Any = library["omp_set_num_threads"]
        self._multiply.argtypes = self.ARGUMENTS
        functions = self._multiply, self._get_threads, self._set_threads
        self.pointers = Pointers(*(ctypes.cast(function, ctypes.c_void_p) for function in functions), *sizes)
        self._sizes = sizes

    def __call__(self, x: Any, y: Any, out: Any = None) -> Any:
        """Return ``x @ y``; ``out`` has the result's shape, float32, C order and memory of no factor."""
        by_x, by_y = (order_of(x), order_of(y)) if self._faster(x, y) else (None, None)
        if by_x is None or by_y is None:
            return np.dot(x, y, out)
        x_at, y_at = address(x), address(y)
        if x_at == y_at:  # BLAS computes half of the product of a matrix and its own transpose
            return np.dot(x, y, out)
        rows, columns = len(x), y.shape[1]
        result = np.empty((rows, columns), FLOAT32) if out is None else out
        (x_order, x_lead), (y_order, y_lead) = by_x, by_y
        factors = x_at, x_lead, y_at, y_lead
        before = self._get_threads()
        self._set_threads(1)
        status = self._multiply(
            x_order, y_order, rows, columns, len(y), 1, *factors, 0, address(result), columns
        )
        self._set_threads(before)
        return np.dot(x, y, out) if status else result

    def _faster(self, x: Any, y: Any) -> bool:
        (rows, inner), (same, columns), sizes = x.shape, y.shape, self._sizes
        if inner != same or rows < sizes.rows or columns < sizes.columns:
            return False
        return sizes.least <= rows * inner * columns <= sizes.most


def order_of(matrix: np.ndarray) -> tuple[bytes, int] | None:
    """Return how BLAS reads a matrix, "N" by rows or "T" by columns, and elements from one to the next.

    None if it can read the matrix neither way.
    """
    for order, far, near, length in (
        (b"N", *matrix.strides, matrix.shape[1]),
        (b"T", *matrix.strides[::-1], matrix.shape[0]),
    ):
        if near == SIZE and far >= SIZE * length and far % SIZE == 0:
            return order, far // SIZE
    return None


def address(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


def faster_products() -> Products | None:
    """Return the products of oneDNN, or None where BLAS is as fast."""
    return products_here() if threads_of_blas() == {1} else None


@cache
def products_here() -> Products | None:
    """Return the products of oneDNN; None if it is missing, or `FASTER` lacks this processor."""
    sizes = sizes_for(cpuinfo())
    library = find().library if sizes is not None else None
    if sizes is None or library is None:
        return None
    try:
        return Products(library, sizes)
    except AttributeError:
        return None


def sizes_for(cpuinfo_text: str) -> Sizes | None:
    """Return the sizes for a processor, given the text of /proc/cpuinfo; None if it is not in `FASTER`."""
    lines = (line.partition(":") for line in cpuinfo_text.split("\n\n")[0].splitlines())
    facts = {name.strip(): value.split() for name, _, value in lines}
    for (vendor, instructions), sizes in FASTER.items():
        if facts.get("vendor_id") == [vendor] and instructions in facts.get("flags", ()):
            return sizes
    return None


def cpuinfo() -> str:
    """Return the text of /proc/cpuinfo, "" without one."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def threads_of_blas() -> set[int]:
    """Return the numbers of threads of the loaded OpenBLAS libraries; an empty set for another BLAS."""
    return {library.num_threads for library in _open_blas()}


@cache
def _open_blas() -> list[Any]:
    return threadpoolctl.ThreadpoolController().select(internal_api="openblas").lib_controllers
