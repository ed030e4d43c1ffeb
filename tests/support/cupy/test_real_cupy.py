"""The stand-ins for CuPy have its names and no others. It is imported without a GPU, and computes nothing."""

import inspect
import subprocess
import sys
from importlib import import_module
from operator import attrgetter

import numpy as np
import pytest

from support.cupy import fake_cupy, stand_in

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


@pytest.mark.parametrize("name", ["numpy", "scipy.special"])
def test_ufuncs_without_complex_numbers(name):
    host, twin = import_module(name), import_module(TWINS[name])

    def is_real(function):
        loops = getattr(function, "types", ())
        return loops and not any(set(loop) & set("FD") for loop in loops)

    ufuncs = [n for n in stand_in.NAMES[name] if isinstance(getattr(host, n, None), np.ufunc)]
    real = {n for n in ufuncs if is_real(getattr(twin, n)) and not is_real(getattr(host, n))}
    assert real == stand_in.REAL & set(ufuncs)


@pytest.mark.parametrize("name", sorted(stand_in.WITH_METHODS))
def test_functions_that_take_no_numbers(name):
    # They fail before they look for a GPU, which would be another error.
    arguments = {"where": (True, 1.0, 2.0), "broadcast_to": (np.float64(2), (3,))}.get(name, (2.0, 1, 1))
    if name in ("argmax", "argmin", "diagonal", "transpose", "unique"):
        arguments = arguments[:1]
    if name in ("broadcast_to", "pad", "repeat", "reshape", "roll", "split", "take"):
        arguments = arguments[:2]
    with pytest.raises((AttributeError, TypeError), match="has no attribute|incorrect type"):
        getattr(cupy, name)(*arguments)


def test_methods_of_arrays():
    methods = stand_in.METHODS | {"flags", "strides", "get", "data"}
    assert [name for name in methods if not hasattr(cupy.ndarray, name)] == []


NEEDED = """
    Device.use alloc_pinned_memory get_current_stream get_allocator set_allocator
    MemoryPool.malloc MemoryPool.set_limit MemoryPool.free_all_blocks MemoryPool.used_bytes MemoryPointer.ptr
    Event.record Event.synchronize Stream.use Stream.record Stream.wait_event Stream.synchronize
    PinnedMemory PinnedMemoryPointer runtime.memcpyAsync runtime.memcpyHostToDevice runtime.CUDARuntimeError
    runtime.getDevice runtime.eventQuery runtime.memGetInfo
"""


@pytest.mark.parametrize("name", NEEDED.split())
def test_names_of_cuda(name):
    attrgetter(name)(cupy.cuda)


def test_arguments_of_copies():
    runtime = cupy.cuda.runtime
    arguments = "(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)"
    assert arguments in runtime.memcpyAsync.__doc__


def test_cuda():
    cuda = fake_cupy._cuda([], 1)
    del cuda.machine  # by which tests look into it
    for name, value in vars(cuda).items():
        real = getattr(cupy.cuda, name)
        if inspect.isclass(value):
            methods = [n for n in vars(value) if not n.startswith("_")]
            assert [n for n in methods if not hasattr(real, n)] == [], name


def test_no_driver_is_loaded():
    look = "import cupy; cupy.RawModule.get_function; print('libcuda.so' in open('/proc/self/maps').read())"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60)
    assert said.stdout == "False\n", said.stderr


def test_what_cudnn_needs_of_cuda():
    # Nothing here may be called: each would look for a driver.
    for name in ("alloc", "get_device_id", "get_current_stream"):
        assert callable(getattr(cupy.cuda, name))
    assert hasattr(cupy.cuda.MemoryPointer, "ptr")
    stream = cupy.cuda.Stream
    assert stream.__weakrefoffset__  # workspaces go with their stream
    assert hasattr(import_module("cupy._core._routines_linalg"), "set_compute_type")
