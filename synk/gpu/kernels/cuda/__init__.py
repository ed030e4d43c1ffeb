"""Kernels in CUDA for what is bound by memory: normalisation, pooling and cross-entropy, of CuPy's arrays.

The CUDA files are compiled for a dtype when a function is first called with that, by NVRTC through CuPy,
which keeps what it compiled on disk.

    norm, residual, pool (arrays, shapes of launches)
        -> name.cu, after common.cu (kernels) -> cuda_functions (CuPy's RawModule)

The same input gives the same bits: all sums have a fixed order, by shapes and not by the GPU, and no two
threads write to one place. Launch shapes should suit an H200; no kernel has run on a GPU yet.
"""

from types import ModuleType

from synk.gpu.kernels.cuda.norm import CudaNorm
from synk.gpu.kernels.cuda.pool import CudaPool
from synk.gpu.kernels.cuda.residual import CudaResidual

__all__ = ["CudaKernels", "serves"]


class CudaKernels(CudaNorm, CudaResidual, CudaPool):
    """Kernels for normalisation, cross-entropy and pooling on a GPU, for arrays of CuPy.

    Arrays are float32, float64, float16 or bfloat16; the last two are computed in float32. Others, and those
    without elements, go to the array operations of `PlainNorm` and `PlainPool`. Statistics, and gradients of
    parameters, have the dtype of gamma; a label that is no column makes a loss of NaN.
    """

    by_dtype = True


def serves(xp: ModuleType) -> bool:
    """Tell whether an array module is CuPy."""
    return xp.__name__ == "cupy"
