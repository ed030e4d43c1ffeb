"""Blockwise: a core Op over leading batch axes, where one array call computes all batches."""

from operator import attrgetter

import numpy as np
from pytensor.tensor.blockwise import Blockwise

from synk.compile.dispatch.broadcast import length_check
from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.table import array_funcify


@array_funcify.register(Blockwise)
def blockwise(op, node, xp):
    """A core Op on every matrix or vector of a batch."""
    function = batched_function(op, xp) if len(node.outputs) == 1 else None
    if function is None:
        return HostCall(node, xp)
    dtype = np.dtype(node.outputs[0].type.dtype)
    check = length_check(
        [v.type.shape[: v.type.ndim - len(core)] for v, core in zip(node.inputs, op.inputs_sig, strict=True)]
    )

    def call(*inputs):
        if check is not None:
            check(inputs)
        return function(*inputs).astype(dtype, copy=False)

    return call


def batched_function(op: Blockwise, xp):
    """Return the function of ``xp`` that computes ``op`` on all batches, or None.

    Ops name it themselves: ``matmul``, ``numpy.linalg.inv``; a name from SciPy has no twin in ``xp``.
    """
    spec = op.gufunc_spec or getattr(op.core_op, "gufunc_spec", None)
    if spec is None or spec[0].startswith("scipy."):
        return None
    return attrgetter(spec[0].removeprefix("numpy."))(xp)
