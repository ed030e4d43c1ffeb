"""Make a fake CuPy: arrays of `stand_in`, streams of `fake_streams`, and a record of calls.

    with fake_cupy.installed() as cupy: ...

Kernels in CUDA run on `emulator`, which needs g++.

A GPU is refused unless it is below ``N_GPUS``, and, as the driver does, in a process that was forked when
CUDA was in use already: ``cuda.machine.process`` is the pid of the one that uses it. Pools, streams and
devices have the methods of CuPy 14 that synk calls, and no others; what is current is so per thread.
"""

import os
import sys
import threading
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import pytest

from support.cuda import emulator
from support.cupy import fake_cublas, fake_streams, stand_in
from synk.gpu.kernels.cudnn import find_cudnn

N_GPUS = 2


class Log(list):
    """A log of the calls, in order."""


def make(n_gpus=N_GPUS):
    """Return the fake module; importing CuPy's submodules for products and cuBLAS finds fakes, too."""
    stand_in.install()
    cupy = ModuleType("cupy")
    cupy.__spec__ = ModuleSpec("cupy", None)
    cupy.__getattr__ = lambda name: getattr(stand_in, name)
    cupy.calls = Log()
    cupy.cuda = _cuda(cupy.calls, n_gpus)
    if not emulator.available():
        pytest.skip("needs g++")
    linalg = ModuleType("cupy._core._routines_linalg")
    linalg.set_compute_type = lambda dtype, kind: cupy.calls.append(("compute type", dtype, kind))
    sys.modules.update({"cupy": cupy, "cupy._core": ModuleType("cupy._core"), linalg.__name__: linalg})
    fake_cublas.install(cupy)
    return cupy


@contextmanager
def installed(n_gpus=N_GPUS):
    """Make ``import cupy`` find the module meanwhile, and no cuDNN, which would want a GPU's memory."""
    before = {*sys.modules}
    with patch.object(find_cudnn, "find", lambda: find_cudnn.FoundCudnn(None, installed=False)):
        yield make(n_gpus)
    stand_in.on_use = stand_in.on_upload = None
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends"):
            del sys.modules[name]


def _cuda(log, n_gpus):
    current = threading.local()
    state = SimpleNamespace(allocator="the default pool")

    class Device:
        def __init__(self, number=None):
            self.id = getattr(current, "gpu", 0) if number is None else number

        def use(self):
            machine.process = machine.process or os.getpid()
            if machine.process != os.getpid():
                raise RuntimeError("cudaErrorInitializationError: initialization error")
            if self.id >= n_gpus:
                raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
            current.gpu = self.id
            log.append(("device", self.id))

    class MemoryPool:
        def __init__(self, allocator=None):
            self.allocator = allocator

        def set_limit(self, size=None, fraction=None):
            log.append(("limit", fraction))

        def malloc(self, nbytes):
            raise AssertionError("arrays of the stand-in are NumPy's")

        def free_all_blocks(self):
            log.append(("freed",))

    machine = fake_streams.Machine(log, current)
    machine.process = None
    null = machine.Stream(null=True)

    def set_allocator(allocator):
        state.allocator = allocator

    @contextmanager
    def using_allocator(allocator):
        before, current.allocator = getattr(current, "allocator", None), allocator
        try:
            yield
        finally:
            current.allocator = before

    cuda = SimpleNamespace(
        Device=Device,
        MemoryPool=MemoryPool,
        Stream=machine.Stream,
        Event=machine.Event,
        PinnedMemory=machine.PinnedMemory,
        PinnedMemoryPointer=fake_streams.PinnedMemoryPointer,
        runtime=machine.runtime,
        machine=machine,
        get_current_stream=lambda: getattr(current, "stream", null),
        get_allocator=lambda: state.allocator,
        set_allocator=set_allocator,
        using_allocator=using_allocator,
    )
    return cuda
