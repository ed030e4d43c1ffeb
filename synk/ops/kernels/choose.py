"""Choose the provider of kernels for an array module and a dtype.

    xp, dtype -> convolution_kernels, pooling_kernels, norm_kernels -> provider -> implementations

A provider's methods take the geometry of an Op and return a function of arrays that accepts ``out=``. For
arrays of NumPy, oneDNN computes convolutions where the extra is installed, and loops in C everything else
where there is a compiler. For arrays of CuPy, cuDNN computes convolutions where it is installed, and kernels
in CUDA everything else. Where one of these cannot be used, it falls back itself to a provider written in
array operations; these providers serve all other array modules.

A provider's module is imported when it is chosen: no program needs all of them, and most need none.
"""

from types import ModuleType
from typing import Any

import numpy as np

from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.plain_norm import PlainNorm
from synk.ops.kernels.plain_pool import PlainPool


def convolution_kernels(xp: ModuleType, dtype: str) -> Any:
    """Return a provider of ``forward``, ``input_gradient`` and ``weight_gradient`` of convolutions."""
    plain = Im2col(xp)
    if xp is np:
        from synk.ops.kernels import onednn

        return onednn.OneDnn(plain) if dtype == "float32" and onednn.available() else plain
    from synk.gpu.kernels import cudnn

    # `CuDnn` reads the dtype of each array: a program may hold 16 bits where the graph says float32.
    return cudnn.CuDnn(xp, plain) if cudnn.serves(xp) else plain


def pooling_kernels(xp: ModuleType, dtype: str) -> Any:
    """Return a provider of ``max_pool``, ``avg_pool``, their gradients and ``global_avg_pool``."""
    return _loops(xp) or PlainPool(xp)


def norm_kernels(xp: ModuleType, dtype: str) -> Any:
    """Return a provider of batch norm, layer norm, cross-entropy, and their gradients."""
    return _loops(xp) or PlainNorm(xp)


def _loops(xp: ModuleType) -> Any:
    """Return the provider of loops in C or in CUDA; None for an array module that has none."""
    if xp is np:
        from synk.ops.kernels import loops

        return loops.LoopKernels(xp)
    from synk.gpu.kernels import cuda

    return cuda.CudaKernels(xp) if cuda.serves(xp) else None
