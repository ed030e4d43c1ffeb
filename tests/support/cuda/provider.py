"""The kernels in CUDA as a provider for arrays of the host: they run on the emulator.

    OnHost().batch_norm(eps, relu, "NHWC")(x, gamma, beta) -> NumPy's arrays

``CUPY`` is the stand-in for a GPU's array module under the name of CuPy.
"""

from functools import cached_property
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from support.cuda import emulator as cuda_emulator
from support.cupy import stand_in

# Marks of a test: an emulator of a GPU belongs to `make test-all`.
needs_emulator = [
    pytest.mark.skipif(not cuda_emulator.available(), reason="there is no g++"),
    pytest.mark.slow,
]

CUPY = ModuleType("cupy")
CUPY.__getattr__ = lambda name: getattr(stand_in, name)


class OnHost:
    """Kernels of a device for arrays of the host, without a copy: results in ``out`` are the arrays given."""

    def __init__(self, kernels=None):
        self._given = kernels

    @cached_property
    def _kernels(self):
        # Imported when asked: what is tested on cores does without synk.gpu.
        return self._given or import_module("synk.gpu.kernels.cuda").CudaKernels(CUPY)

    def __getattr__(self, name):
        make = getattr(self._kernels, name)
        return lambda *geometry: bridged(make(*geometry))


def bridged(function):
    """Return an implementation on device arrays as one on arrays of the host."""

    def implementation(*arrays, out=None):
        before = stand_in.counts.uploads, stand_in.counts.downloads
        results = function(*map(there, arrays), out=there(out))
        assert (stand_in.counts.uploads, stand_in.counts.downloads) == before
        return here(results)

    return implementation


def there(value):
    if isinstance(value, tuple):
        return tuple(map(there, value))
    return stand_in.ndarray(value) if isinstance(value, np.ndarray) else value


def here(value):
    return tuple(map(here, value)) if isinstance(value, tuple) else value._value
