"""The tables of entries: Ops on arrays, scalar Ops applied elementwise, and the sides of Ops.

All are open: ``array_funcify.register(MyOp)`` from anywhere adds an Op. The host is where Python and NumPy
run; the device is where the arrays of another module live. With NumPy the two are one.
"""

from collections.abc import Callable, Collection
from functools import singledispatch
from types import ModuleType
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType

from synk.compile.dispatch.host import HostCall

HOST, DEVICE, FOLLOW, MOVED = "host", "device", "follow", "moved"


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


@singledispatch
def side(op: Any, node: Apply) -> str:
    """Return where ``node`` computes.

    ``HOST``: with NumPy, all inputs on the host. ``DEVICE``: with the array module, inputs on the device.
    ``FOLLOW``: on the host if its inputs are there and it is small or wanted there, else on the device.

    ``MOVED``: on the host because the device has no such values, and named in the program's ``host_nodes``:
    Ops that are not listed and handle generators, sparse matrices or lists.
    """
    arrays = (DenseTensorType, ScalarType, SliceType, NoneTypeT)
    known = all(isinstance(variable.type, arrays) for variable in (*node.inputs, *node.outputs))
    return DEVICE if known else MOVED


@singledispatch
def host_inputs(op: Any, node: Apply) -> Collection[int]:
    """Return the positions of the inputs that ``node``'s implementation reads on the host: lengths, axes."""
    return ()


@singledispatch
def free_inputs(op: Any, node: Apply) -> Collection[int]:
    """Return the positions of the inputs that may be on the other side than the node.

    Only their shape is read; or they have one element, and a NumPy scalar does as well.
    """
    return ()
