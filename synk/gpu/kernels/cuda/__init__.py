"""CUDA kernels whose time goes into reading memory: normalisation, pooling and cross-entropy.

They compute CuPy's arrays. The CUDA files are compiled for a dtype when a function is first called with that
dtype, by NVRTC through CuPy, which keeps compiled files on disk.

    norm, residual, pool (arrays, shapes of launches)
        -> name.cu, after common.cu (kernels) -> cuda_functions (CuPy's RawModule)

The same input always gives the same bits: the order of sums depends on shapes and not on the GPU, and no two
threads write to one place. Numbers of blocks and threads should suit an H200; no kernel has run on a GPU yet.
"""

from synk.gpu.kernels.cuda.norm import CudaNorm
from synk.gpu.kernels.cuda.pool import CudaPool
from synk.gpu.kernels.cuda.residual import CudaResidual

__all__ = ["CudaKernels"]


class CudaKernels(CudaNorm, CudaResidual, CudaPool):
    """Kernels for normalisation, cross-entropy and pooling on a GPU, for arrays of CuPy.

    Arrays are float32, float64, float16 or bfloat16; the last two are computed in float32. Arrays of other
    dtypes, and those without elements, are computed by `PlainNorm` and `PlainPool`. Statistics, and gradients
    of parameters, have the dtype of gamma; a label that is not the number of a column makes a loss of NaN.
    """

    by_dtype = True
