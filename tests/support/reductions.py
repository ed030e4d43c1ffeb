"""Dtypes and the operations that each of them takes, and results of ranks without their rows."""

from synk.values import reduction
from synk.values.messages import Results
from synk.values.operations import OPERATIONS

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = [*FLOATS, *INTEGERS, *COMPLEX, "bool"]
LEGAL = [
    *((op, dtype) for dtype in FLOATS for op in OPERATIONS),
    *((op, dtype) for dtype in INTEGERS for op in ("sum", "prod", "min", "max")),
    *((op, dtype) for dtype in COMPLEX for op in ("avg", "sum", "prod")),
    *((op, "bool") for op in ("prod", "min", "max")),
]


def combine(mode, partials, dtype=None):
    """Return one output of ranks with these partial results."""
    of_ranks = [None if part is None else Results([part.value], part.weight) for part in partials]
    return reduction.combine([reduction.Output(mode, dtype, "output 0")], of_ranks)[0]
