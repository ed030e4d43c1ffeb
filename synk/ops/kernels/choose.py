"""Choose the provider of kernels for an array module and a dtype.

    xp, dtype -> convolution_kernels, pooling_kernels, norm_kernels -> provider -> implementations

A provider's methods take the geometry of an Op and return a function of arrays that accepts ``out=``. For
arrays of NumPy, oneDNN computes convolutions where the extra is installed, and loops in C everything else
where there is a compiler; another array module may enter providers of its own in `PROVIDERS`. Where one of
these cannot be used, it falls back itself to a provider written in array operations; these serve all other
array modules.

A provider's module is imported when it is chosen: no program needs all of them, and most need none.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.plain_norm import PlainNorm
from synk.ops.kernels.plain_pool import PlainPool


class Providers(NamedTuple):
    """The providers for one array module; each field is called as ``(xp, dtype)`` and returns a provider."""

    convolutions: Callable[[ModuleType, str], Any]
    pooling: Callable[[ModuleType, str], Any]
    norms: Callable[[ModuleType, str], Any]


def _convolutions_of_numpy(xp: ModuleType, dtype: str) -> Any:
    from synk.ops.kernels import onednn

    plain = Im2col(xp)
    return onednn.OneDnn(plain) if dtype == "float32" and onednn.available() else plain


def _loops(xp: ModuleType, dtype: str) -> Any:
    from synk.ops.kernels import loops

    return loops.LoopKernels(xp)


PLAIN = Providers(
    lambda xp, dtype: Im2col(xp), lambda xp, dtype: PlainPool(xp), lambda xp, dtype: PlainNorm(xp)
)

# By the name of the array module.
PROVIDERS = {"numpy": Providers(_convolutions_of_numpy, _loops, _loops)}


def convolution_kernels(xp: ModuleType, dtype: str) -> Any:
    """Return a provider of ``forward``, ``input_gradient`` and ``weight_gradient`` of convolutions."""
    return PROVIDERS.get(xp.__name__, PLAIN).convolutions(xp, dtype)


def pooling_kernels(xp: ModuleType, dtype: str) -> Any:
    """Return a provider of pooling, changes of size, and their gradients."""
    return PROVIDERS.get(xp.__name__, PLAIN).pooling(xp, dtype)


def norm_kernels(xp: ModuleType, dtype: str) -> Any:
    """Return a provider of batch, group and layer norm, cross-entropy, and their gradients."""
    return PROVIDERS.get(xp.__name__, PLAIN).norms(xp, dtype)
