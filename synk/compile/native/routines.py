"""Routines of BLAS and LAPACK in machine code, as SciPy exports them.

calls of `number_of` in texts -> ``routines`` in a library, which `pointers` fill
"""

from functools import cache

from synk.compile.native.capsules import pointer_in

NAMES = (
    *("dgemv", "sgemv", "dgemm", "sgemm"),  # in this order for ``MULTIPLY`` in ``prelude/products.c``
    *("dtrsm", "strsm", "dpotrf", "spotrf"),
    *("dtrsv", "strsv", "dgetrf", "sgetrf", "dgetrs", "sgetrs"),
)
TABLE = f"void *routines[{len(NAMES)}];"  # stands before a text that calls any


def number_of(name: str, kind: str) -> int:
    """Return the number of a routine on ``float`` or ``double``."""
    return NAMES.index(("s" if kind == "float" else "d") + name)


@cache
def pointers() -> list[int]:
    """Return where the routines are."""
    from scipy.linalg import cython_blas, cython_lapack  # takes 100 ms, which many programs do not need

    exported = cython_blas.__pyx_capi__ | cython_lapack.__pyx_capi__
    return [pointer_in(exported[name]) for name in NAMES]
