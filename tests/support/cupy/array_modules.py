"""The array modules that tests run on: NumPy, a stand-in for CuPy everywhere, CuPy where there is a GPU.

    @pytest.fixture(params=PLACES) ... import_arrays(request.param)

So each test of a device is two, and what is wrong in the test itself shows without a GPU. `make test` leaves
the stand-in to `make test-all`.
"""

import importlib
import sys

import numpy
import pytest

from support.slow import slow

# Warnings are errors, but those of CuPy are not what is tested.
CALM = pytest.mark.filterwarnings("ignore:::cupy")
ON_A_GPU = [pytest.mark.gpu, CALM]
# Hundreds of tests have a twin: where these are not asked for, and could only be skipped, they are left out.
TWIN_ON_A_GPU = [pytest.mark.gpu(twin=True), CALM]

NEEDS_GPU = pytest.param("cupy", marks=ON_A_GPU)
PLACES = [slow("stand-in"), NEEDS_GPU]
HOST_AND_DEVICES = ["numpy", slow("stand-in"), pytest.param("cupy", marks=TWIN_ON_A_GPU)]


def import_arrays(name, monkeypatch):
    """Return an array module by its name; the fake CuPy's count of transfers is reset."""
    if name == "numpy":
        return numpy
    if name == "cupy":
        return importlib.import_module("cupy")
    from support.cupy import stand_in  # what it stands in for are all of SciPy's parts, too

    stand_in.install(lambda modules, key, module: monkeypatch.setitem(sys.modules, key, module))
    stand_in.counts.reset()
    return stand_in


@pytest.fixture
def device(monkeypatch):
    """Return the stand-in for a GPU's array module, its counts at zero."""
    return import_arrays("stand-in", monkeypatch)


@pytest.fixture
def cupy(device, monkeypatch):
    """Return the stand-in for CuPy, with kernels and a cuBLAS, which ``import cupy`` finds meanwhile."""
    from support.cupy import fake_cupy

    monkeypatch.delenv("CUPY_TF32", raising=False)
    with fake_cupy.installed() as made:
        yield made
