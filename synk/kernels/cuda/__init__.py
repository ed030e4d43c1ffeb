"""Kernels in CUDA for what is bound by memory: normalisation, pooling and cross-entropy, of CuPy's arrays.

The CUDA files are compiled for a dtype when a function is first called with that, by NVRTC through CuPy,
which keeps what it compiled on disk.

    provider -> batch_norm, layer_norm, cross_entropy, pool (arrays, shapes of launches)
             -> name.cu, after common.cu (kernels) -> library (CuPy's RawModule)

The same input gives the same bits: all sums have a fixed order, by shapes and not by the GPU, and no two
threads write to one place. Launch shapes should suit an H200; no kernel has run on a GPU yet.
"""

from synk.kernels.cuda.provider import CudaKernels, serves

__all__ = ["CudaKernels", "serves"]
