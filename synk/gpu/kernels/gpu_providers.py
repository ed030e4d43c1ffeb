"""Providers of kernels for CuPy's arrays: cuDNN for convolutions where it is installed, the rest in CUDA.

Each is imported when it is chosen. It falls back itself to a provider in array operations.
"""

from types import ModuleType
from typing import Any

from synk.ops.kernels.choose import Providers
from synk.ops.kernels.im2col import Im2col


def _convolutions(xp: ModuleType, dtype: str) -> Any:
    from synk.gpu.kernels import cudnn

    # `CuDnn` reads the dtype of each array: a program may hold 16 bits where the graph says float32.
    return cudnn.CuDnn(xp, Im2col(xp)) if cudnn.serves(xp) else Im2col(xp)


def _cuda(xp: ModuleType, dtype: str) -> Any:
    from synk.gpu.kernels import cuda

    return cuda.CudaKernels(xp)


GPU_PROVIDERS = Providers(_convolutions, _cuda, _cuda)
