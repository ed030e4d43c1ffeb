"""Array entries, one Op family a file; importing this package registers them all, but for two families.

PyTensor's packages of sparse matrices and typed lists take up to 140 ms to import, and few graphs use them.
An Op of theirs is in a graph only when its package has been imported, so their entries are imported, which
is cheap then, when the first of their Ops is met.

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

from collections.abc import Iterator
from importlib import import_module

from pytensor.graph.op import Op

from synk.compile.dispatch import (  # noqa: F401  (they register entries)
    allocate,
    blas,
    blockwise,
    decomposition,
    elemwise,
    graph_ops,
    linalg,
    pick,
    reduce,
    sampler,
    scalar,
    scan,
    shape,
    sides,
    signal,
    solve,
    spectrum,
    subtensor,
)
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify, array_scalar
from synk.gpu.dispatch import rounded, width  # noqa: F401  (they register entries)

__all__ = ["array_funcify", "array_scalar"]

# The package of the Ops -> the module that registers their entries.
FAMILIES = {
    "pytensor.sparse": "synk.compile.dispatch.sparse",
    "pytensor.typed_list": "synk.compile.dispatch.typed_list",
}


@array_funcify.register(Op)
def late(op, node, xp):
    """The entry of a family that is imported now; where there is none, the Op's own implementation."""
    for family in families(type(op)):
        import_module(family)
    entry = array_funcify.dispatch(type(op))
    return HostCall(node, xp) if entry is late else entry(op, node, xp)


def families(op_class: type) -> Iterator[str]:
    """Yield the modules with entries for ``op_class`` or a class it derives from."""
    for base in op_class.__mro__:
        for package, module in FAMILIES.items():
            if f"{base.__module__}.".startswith(f"{package}."):
                yield module
