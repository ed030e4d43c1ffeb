"""Loops in C for what is bound by memory: normalisation, pooling and cross-entropy, of NumPy arrays.

The C files are compiled for a dtype when a function is first called with that, and kept in the store
of kernels. Where nothing can be compiled, NumPy versions run instead, after a warning.

    name.py (arrays) -> name.c, after common.c (loops) -> library (compiler, store, ctypes)

The same input gives the same bits, whatever ran before: all sums have a fixed order. A result larger than the
caches is written past them. ctypes releases the interpreter lock during a loop.
"""

from synk.kernels.loops.batch_norm import batch_norm, batch_norm_gradient
from synk.kernels.loops.cross_entropy import softmax_cross_entropy, softmax_cross_entropy_gradient
from synk.kernels.loops.layer_norm import layer_norm, layer_norm_gradient
from synk.kernels.loops.library import available
from synk.kernels.loops.pool import (
    avg_pool,
    avg_pool_gradient,
    global_avg_pool,
    max_pool,
    max_pool_gradient,
)

__all__ = [
    "available",
    "avg_pool",
    "avg_pool_gradient",
    "batch_norm",
    "batch_norm_gradient",
    "global_avg_pool",
    "layer_norm",
    "layer_norm_gradient",
    "max_pool",
    "max_pool_gradient",
    "softmax_cross_entropy",
    "softmax_cross_entropy_gradient",
]
