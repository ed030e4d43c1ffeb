"""The stand-ins for CuPy have its names and no others. It is imported without a GPU, and computes nothing."""

import inspect
from importlib import import_module

import fake_cupy
import pytest
import stand_in

cupy = pytest.importorskip("cupy", reason="make gpu-plans has it")

TWINS = {
    "numpy": "cupy",
    "numpy.linalg": "cupy.linalg",
    "numpy.fft": "cupy.fft",
    "scipy.special": "cupyx.scipy.special",
    "scipy.linalg": "cupyx.scipy.linalg",
    "scipy.signal": "cupyx.scipy.signal",
}


@pytest.mark.filterwarnings("ignore:cupyx.jit:FutureWarning")  # signal has kernels by that, an experiment
@pytest.mark.parametrize("name", TWINS)
def test_functions(name):
    try:
        twin = import_module(TWINS[name])
    except ImportError as error:  # signal loads cuSPARSE, which an environment without a GPU spares itself
        pytest.skip(str(error).partition("\n")[0])
    assert [function for function in stand_in.NAMES[name] if not hasattr(twin, function)] == []


def test_methods_of_arrays():
    methods = stand_in.METHODS | {"flags", "strides", "get", "data"}
    assert [name for name in methods if not hasattr(cupy.ndarray, name)] == []


def test_cuda():
    cuda = fake_cupy._cuda([], 1)
    del cuda.machine  # by which tests look into it
    for name, value in vars(cuda).items():
        real = getattr(cupy.cuda, name)
        if inspect.isclass(value):
            methods = [n for n in vars(value) if not n.startswith("_")]
            assert [n for n in methods if not hasattr(real, n)] == [], name


def test_what_cudnn_needs_of_cuda():
    # Nothing here may be called: each would look for a driver.
    for name in ("alloc", "get_device_id", "get_current_stream"):
        assert callable(getattr(cupy.cuda, name))
    assert hasattr(cupy.cuda.MemoryPointer, "ptr")
    stream = cupy.cuda.Stream
    assert stream.__weakrefoffset__  # workspaces go with their stream
    assert hasattr(import_module("cupy._core._routines_linalg"), "set_compute_type")
