"""Tridiagonal systems by LAPACK on the host: LU factors of three diagonals, and solutions by them."""

import numpy as np
from pytensor.tensor.linalg.solvers.tridiagonal import LUFactorTridiagonal, SolveLUFactorTridiagonal

from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.lapack import lapack
from synk.compile.dispatch.table import array_funcify


@array_funcify.register(LUFactorTridiagonal)
def tridiagonal_lu(op, node, xp):
    """Multipliers, three diagonals of ``U`` and the row that each row was exchanged with."""
    if xp is not np:
        return HostCall(node, xp)
    gttrf = lapack("gttrf", np.dtype(node.outputs[0].type.dtype))
    keywords = {name: getattr(op, name) for name in ("overwrite_dl", "overwrite_d", "overwrite_du")}

    def factor(lower, diagonal, upper):
        return gttrf(lower, diagonal, upper, **keywords)[:-1]

    return factor


@array_funcify.register(SolveLUFactorTridiagonal)
def tridiagonal_solve(op, node, xp):
    """``a x = b``, or ``a^T x = b``, from the factors of ``a``."""
    if xp is not np:
        return HostCall(node, xp)
    gttrs = lapack("gttrs", np.dtype(node.outputs[0].type.dtype))
    trans = "T" if op.transposed else "N"

    def solution(*factors_and_b):
        return gttrs(*factors_and_b, overwrite_b=op.overwrite_b, trans=trans)[0]

    return solution
