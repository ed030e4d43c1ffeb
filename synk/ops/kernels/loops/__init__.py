"""Loops in C for kernels whose time goes into reading memory: normalisation, pooling, sizes, cross-entropy.

They compute NumPy arrays. The C files are compiled for a dtype when a function is first called with that
dtype, and the library is kept in the store of kernels. Without a compiler, NumPy versions run instead, after
a warning.

    norm, pool, resampling (arrays) -> name.c, after common.c (loops) -> c_functions (compiler, store, ctypes)

The same input always gives the same bits, because all sums have a fixed order. A result larger than the
caches is written to memory directly. ctypes releases the interpreter lock during a loop.
"""

from synk.ops.kernels.loops.c_functions import available
from synk.ops.kernels.loops.norm import LoopNorm
from synk.ops.kernels.loops.pool_loops import LoopPool
from synk.ops.kernels.loops.resampling_loops import LoopResampling

__all__ = ["LoopKernels", "available"]


class LoopKernels(LoopNorm, LoopPool, LoopResampling):
    """Kernels for normalisation, cross-entropy, pooling and changes of size, for arrays of NumPy."""
