"""The two tables of entries: Ops on arrays, and scalar Ops applied elementwise.

Both are open: ``array_funcify.register(MyOp)`` from anywhere adds an Op.
"""

from collections.abc import Callable
from functools import singledispatch
from types import ModuleType
from typing import Any

from pytensor.graph.basic import Apply

from synk.compile.dispatch.host import HostCall


@singledispatch
def array_funcify(op: Any, node: Apply, xp: ModuleType) -> Callable:
    """Return the implementation of ``node`` on arrays of the module ``xp``.

    An Op without an entry runs its own Python implementation, on the host.
    """
    return HostCall(node, xp)


@singledispatch
def array_scalar(scalar_op: Any, node: Apply, xp: ModuleType) -> Callable | None:
    """Return ``scalar_op`` as a function of whole arrays, or None if there is none.

    Parameters
    ----------
    scalar_op : ScalarOp
        Operation of ``node``'s Elemwise.
    node : Apply
        Gives the dtypes.
    xp : module
        Array module.
    """
    return None
