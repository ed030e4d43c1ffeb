"""Register the entries of a family when the first of its Ops is met.

PyTensor's packages of sparse matrices and typed lists take up to 140 ms to import, and few graphs use them.
An Op of theirs is in a graph only when its package has been imported; importing the entries is cheap then.
"""

from collections.abc import Iterator
from importlib import import_module

from pytensor.graph.op import Op

from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.table import array_funcify

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
