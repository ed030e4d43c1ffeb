"""Run a node by its Op's own Python implementation, on the host.

With an array module other than NumPy this copies the inputs to the host and the outputs back,
which is why the linker can be told to warn or to refuse.
"""

from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.type import DenseTensorType

from synk.compile.compat import host_op


class HostCall:
    """Run a node by its Op's own Python implementation; take and return arrays of ``xp``.

    It runs a clone of the node, whose storage no other call uses.
    """

    def __init__(self, node: Apply, xp: ModuleType):
        self.host_nodes = (node,)
        self._xp = xp
        self._node = node.clone()
        self._node.op = host_op(node.op)
        self._cells: dict[Any, list] = {v: [None] for v in (*self._node.inputs, *self._node.outputs)}
        computed = {variable: [True] for variable in self._cells}
        self._thunk = self._node.op.make_thunk(self._node, self._cells, computed, [], impl="py")

    def __call__(self, *inputs):
        cells = self._cells
        for variable, value in zip(self._node.inputs, inputs, strict=True):
            cells[variable][0] = self._to_host(variable, value)
        try:
            self._thunk()
            results = tuple([self._to_device(v, cells[v][0]) for v in self._node.outputs])
        finally:
            # A value kept here would outlive its last use in the program.
            for cell in cells.values():
                cell[0] = None
        return results[0] if len(results) == 1 else results

    def _to_host(self, variable, value):
        if not isinstance(variable.type, DenseTensorType) or isinstance(value, np.ndarray):
            return value
        return np.asarray(value) if self._xp is np else self._xp.asnumpy(value)

    def _to_device(self, variable, value):
        if not isinstance(variable.type, DenseTensorType):
            return value
        return self._xp.asarray(as_declared(value, variable.type.dtype))


def as_declared(value: Any, dtype: str) -> Any:
    """Convert a result of ``perform`` to an array of the dtype that its node declares.

    Raises TypeError if the declared dtype is one of integers or truth values that cannot hold the result.
    """
    value = np.asarray(value)
    if value.dtype == dtype:
        return value
    with np.errstate(all="ignore"):
        converted = value.astype(dtype)
    if converted.dtype.kind in "biu" and not np.array_equal(converted, value):
        lost = value[converted != value][0]
        raise TypeError(
            f"perform gives {value.dtype}, and the declared {dtype} cannot hold {lost}; declare the dtype "
            "that it gives in make_node, or convert what it gives"
        )
    return converted
