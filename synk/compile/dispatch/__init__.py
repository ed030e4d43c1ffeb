"""Array entries, one Op family a file; importing this package registers them all, but for two families.

PyTensor's packages of sparse matrices and typed lists take up to 140 ms to import, and few graphs use them.
An Op of theirs is in a graph only if its package has been imported already; then importing the entries takes
little time, and that is done when the first of these Ops is met.

An entry is a function ``(op, node, xp) -> implementation`` registered by the Op's class:

    @array_funcify.register(Dot)
    def dot(op, node, xp):
        return xp.dot

Docstrings of entries say what the implementation does. It takes the values of the node's inputs and returns
the value of its output, or a tuple if there are several. It

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
    rounded,
    sampler,
    scalar,
    scan,
    shape,
    sides,
    signal,
    solve,
    spectrum,
    storage_width,
    subtensor,
)
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify, array_scalar

__all__ = ["array_funcify", "array_scalar"]

# The package of the Ops -> the module that registers their entries.
FAMILIES = {
    "pytensor.sparse": "synk.compile.dispatch.sparse",
    "pytensor.typed_list": "synk.compile.dispatch.typed_list",
}


@array_funcify.register(Op)
def import_entry(op, node, xp):
    """Import the entries of the family of an Op that has none yet, and return its implementation by them.

    An Op that has no entry even then runs its own ``perform``.
    """
    for family in families(type(op)):
        import_module(family)
    entry = array_funcify.dispatch(type(op))
    return HostCall(node, xp) if entry is import_entry else entry(op, node, xp)


def families(op_class: type) -> Iterator[str]:
    """Yield the modules with entries for ``op_class`` or for a class from which it derives."""
    for base in op_class.__mro__:
        for package, module in FAMILIES.items():
            if f"{base.__module__}.".startswith(f"{package}."):
                yield module
