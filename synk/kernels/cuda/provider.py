"""The kernels in CUDA as a provider, with the methods of `PlainNorm` and `PlainPool`.

CudaKernels(cupy).batch_norm(eps, relu, "NHWC") -> f(x, gamma, beta, out=None) -> y, mean, inv_std
"""

from collections.abc import Callable
from types import ModuleType

from synk.kernels.cuda import batch_norm, cross_entropy, layer_norm, pool, residual
from synk.kernels.window import Pooling


def serves(xp: ModuleType) -> bool:
    """Tell whether an array module is CuPy, or one like it that compiles CUDA."""
    return xp.__name__ == "cupy" and hasattr(xp, "RawModule")


class CudaKernels:
    """Kernels for normalisation, cross-entropy and pooling on a GPU.

    Arrays are float32, float64, float16 or bfloat16; the last two are computed in float32. Others, and those
    without elements, go to the array operations of ``plain_norm`` and ``plain_pool``, which also say what
    each method returns.

    Parameters
    ----------
    xp : module
        CuPy.
    """

    by_dtype = True  # arrays of 16 bits are taken, and given, as they are

    def __init__(self, xp: ModuleType):
        self._xp = xp

    def batch_norm(self, eps: float, relu: bool, layout: str) -> Callable:
        """Return forward, as `PlainNorm.batch_norm`; statistics have the dtype of gamma."""
        return batch_norm.forward(self._xp, eps, relu, layout)

    def batch_norm_gradient(self, relu: bool, layout: str) -> Callable:
        """Return backward, as `PlainNorm.batch_norm_gradient`; ggamma and gbeta have the dtype of gamma."""
        return batch_norm.backward(self._xp, relu, layout)

    def residual(self, eps: float, layout: str) -> Callable:
        """Return forward, as `plain_residual.residual`; statistics have the dtype of gamma."""
        return residual.forward(self._xp, eps, layout)

    def residual_gradient(self, layout: str) -> Callable:
        """Return backward, as `plain_residual.residual_gradient`."""
        return residual.backward(self._xp, layout)

    def layer_norm(self, eps: float, n_axes: int) -> Callable:
        """Return forward, as `PlainNorm.layer_norm`; statistics have the dtype of gamma."""
        return layer_norm.forward(self._xp, eps, n_axes)

    def layer_norm_gradient(self, n_axes: int) -> Callable:
        """Return backward, as `PlainNorm.layer_norm_gradient`; ggamma and gbeta have the dtype of gamma."""
        return layer_norm.backward(self._xp, n_axes)

    def softmax_cross_entropy(self) -> Callable:
        """Return forward, as `PlainNorm.softmax_cross_entropy`: a label that is no column makes NaN."""
        return cross_entropy.forward(self._xp)

    def softmax_cross_entropy_gradient(self) -> Callable:
        """Return backward, as `PlainNorm.softmax_cross_entropy_gradient`."""
        return cross_entropy.backward(self._xp)

    def max_pool(self, pooling: Pooling, index_dtype: str) -> Callable:
        """Return the maximum of windows and its place in them, as `PlainPool.max_pool`."""
        return pool.max_pool(self._xp, pooling, index_dtype)

    def max_pool_gradient(self, pooling: Pooling) -> Callable:
        """Return what gives each gradient to the place of its maximum, as `PlainPool.max_pool_gradient`."""
        return pool.max_pool_gradient(self._xp, pooling)

    def avg_pool(self, pooling: Pooling, count_padding: bool) -> Callable:
        """Return the mean of windows, as `PlainPool.avg_pool`."""
        return pool.avg_pool(self._xp, pooling, count_padding)

    def avg_pool_gradient(self, pooling: Pooling, count_padding: bool) -> Callable:
        """Return what spreads each gradient over its window, as `PlainPool.avg_pool_gradient`."""
        return pool.avg_pool_gradient(self._xp, pooling, count_padding)

    def global_avg_pool(self, layout: str) -> Callable:
        """Return the mean of each image by channel, as `PlainPool.global_avg_pool`."""
        return pool.global_avg_pool(self._xp, layout)
