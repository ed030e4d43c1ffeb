"""Loops in C for what is bound by memory: normalisation, pooling and cross-entropy, of NumPy arrays.

The C files are compiled for a dtype when a function is first called with that, and kept in the store
of kernels. Where nothing can be compiled, NumPy versions run instead, after a warning.

    norm, pool (arrays) -> name.c, after common.c (loops) -> c_functions (compiler, store, ctypes)

The same input gives the same bits, whatever ran before: all sums have a fixed order. A result larger than the
caches is written past them. ctypes releases the interpreter lock during a loop.
"""

from synk.ops.kernels.loops.c_functions import available
from synk.ops.kernels.loops.norm import LoopNorm
from synk.ops.kernels.loops.pool_loops import LoopPool

__all__ = ["LoopKernels", "available"]


class LoopKernels(LoopNorm, LoopPool):
    """Kernels for normalisation, cross-entropy and pooling on processors, for arrays of NumPy."""
