"""Array entries, one Op family a file; importing this package registers them all.

An entry is a function ``(op, node, xp) -> implementation`` registered by the Op's class:

    @array_funcify.register(Dot)
    def dot(op, node, xp):
        return xp.dot

The implementation takes the values of the node's inputs and returns the value of its output, or a
tuple if there are several. It

- accepts NumPy scalars for 0-d tensors and may return them;
- returns the dtype that the node declares;
- never returns an input, or a view of one, unless the Op's ``view_map`` or ``destroy_map`` says so.
"""

from synk.compile.dispatch import (
    allocate,
    blas,
    blockwise,
    decomposition,
    diagonal,
    elemwise,
    fused,
    graph,
    index,
    join,
    late,
    linalg,
    order,
    pick,
    random,
    reduce,
    scalar,
    scan,
    scan_scalar,
    schur,
    search,
    shape,
    sides,
    signal,
    softmax,
    solve,
    spectrum,
    substitution,
    subtensor,
    tridiagonal,
)
from synk.compile.dispatch.table import array_funcify, array_scalar

__all__ = [
    "allocate",
    "array_funcify",
    "array_scalar",
    "blas",
    "blockwise",
    "decomposition",
    "diagonal",
    "elemwise",
    "fused",
    "graph",
    "index",
    "join",
    "late",
    "linalg",
    "order",
    "pick",
    "random",
    "reduce",
    "scalar",
    "scan",
    "scan_scalar",
    "schur",
    "search",
    "shape",
    "sides",
    "signal",
    "softmax",
    "solve",
    "spectrum",
    "substitution",
    "subtensor",
    "tridiagonal",
]
