"""The addresses of routines of BLAS and LAPACK, which SciPy exports, for compiled regions to call.

number_of -> a routine's index in a library's table ``routines``
pointers -> the addresses, for that table
"""

from functools import cache

from synk.compile.native.capsules import pointer_in

NAMES = (
    *("dgemv", "sgemv", "dgemm", "sgemm"),  # in this order for ``MULTIPLY`` in ``prelude/products.c``
    *("dtrsm", "strsm", "dpotrf", "spotrf"),
    *("dtrsv", "strsv", "dgetrf", "sgetrf", "dgetrs", "sgetrs"),
)
TABLE = f"void *routines[{len(NAMES)}];"  # the declaration that a text which calls routines needs


def number_of(name: str, kind: str) -> int:
    """Return the index of a routine on ``float`` or ``double`` in the table ``routines``."""
    return NAMES.index(("s" if kind == "float" else "d") + name)


@cache
def pointers() -> list[int]:
    """Return the addresses of the routines, in the order of `NAMES`."""
    from scipy.linalg import cython_blas, cython_lapack  # takes 100 ms, which many programs do not need

    exported = cython_blas.__pyx_capi__ | cython_lapack.__pyx_capi__
    return [pointer_in(exported[name]) for name in NAMES]
