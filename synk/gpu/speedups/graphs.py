"""CUDA graphs: record the launches on one GPU, and launch them again together.

    Graphs.record(run) -> begin capture, run, end capture -> (the result of run, replay)

A recording keeps its addresses, so it allocates from a pool that only recordings use. All of them share the
pool, since a recording needs no contents of its memory while another one runs.

Products call cuBLAS directly, because CuPy's wrappers refuse to be recorded. A recorded product writes to the
workspace of its handle at each replay, so it must not use CuPy's handle, whose workspace others use, too.
*Unrun* on GPUs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from synk.gpu.dispatch.cublas import WHOLE_SUMS, multiplied_by

WORKSPACE_BYTES = 32 << 20  # what cuBLAS asks for on Hopper

_int, _pointer, _long = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
_OPERAND, _BATCHED = (_pointer, _int, _int), (_pointer, _int, _int, _long)
_HEAD = (_pointer, _int, _int, _int, _int, _int, _pointer)
SIGNATURES = {
    "cublasCreate_v2": (ctypes.POINTER(_pointer),),
    "cublasSetMathMode": (_pointer, _int),
    "cublasSetStream_v2": (_pointer, _pointer),
    "cublasSetWorkspace_v2": (_pointer, _pointer, ctypes.c_size_t),
    "cublasGemmEx": (*_HEAD, *_OPERAND, *_OPERAND, _pointer, *_OPERAND, _int, _int),
    "cublasGemmStridedBatchedEx": (*_HEAD, *_BATCHED, *_BATCHED, _pointer, *_BATCHED, *(_int,) * 3),
}


class Graphs:
    """Record launches in the stream in which a GPU's programs are launched.

    Recordings may take the fraction ``memory`` of the GPU's memory. ``lock`` is held while launches in the
    stream are recorded, so that no other thread launches in it.
    """

    def __init__(self, cupy: Any, stream: Any, memory: float = 1.0):
        self._cupy = cupy
        self._stream = stream
        self._kept: list[Any] = []
        self._pool = cupy.cuda.MemoryPool(self._allocate)
        self._pool.set_limit(fraction=memory)
        self.lock = threading.Lock()
        self._cublas: CublasHandle | None = None

    def warm(self, run: Callable[[], Any]) -> Any:
        """Return ``run()``, which allocates from the pool of recordings."""
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            return run()

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Record the launches of ``run()`` without executing them; return its result, and a replay.

        Raise the error of ``run``, or one of CUDA if a call cannot be recorded; nothing has been executed
        then.
        """
        with self.lock, self._cupy.cuda.using_allocator(self._pool.malloc):
            if self._cublas is None:
                self._cublas = CublasHandle(self._cupy)
            self._stream.begin_capture()
            try:
                self._cublas.begin()
                with multiplied_by(self._cublas):
                    values = run()
            except BaseException:
                with suppress(Exception):  # the recording was broken off: CUDA says so again
                    self._stream.end_capture()
                raise
            recorded = self._stream.end_capture()
        return values, partial(recorded.launch, self._stream)

    def close(self) -> None:
        """Release cuBLAS and the memory of the pool."""
        self._cublas = None  # CUDA frees it with the process
        self._pool.free_all_blocks()
        self._kept.clear()

    def _allocate(self, n_bytes: int) -> Any:
        """Return new memory of CUDA for the pool, and keep it.

        A full pool would free all unused blocks, but recordings write to theirs at the next replay.
        """
        memory = self._cupy.cuda.Memory(n_bytes)
        self._kept.append(memory)
        return self._cupy.cuda.MemoryPointer(memory, 0)


class CublasHandle:
    """A cuBLAS handle with a workspace, for the recordings on one GPU."""

    def __init__(self, cupy: Any):
        self._library, self._cupy = load(), cupy
        for name, types in SIGNATURES.items():
            getattr(self._library, name).argtypes = types
        handle = _pointer()
        self._ask("cublasCreate_v2", ctypes.byref(handle))
        self._handle = handle.value
        self._ask("cublasSetMathMode", self._handle, WHOLE_SUMS)
        self._workspace = cupy.empty(WORKSPACE_BYTES, "u1")

    def begin(self) -> None:
        """Use the current stream from now on, and set the workspace, which setting a stream resets."""
        self._ask("cublasSetStream_v2", self._handle, self._cupy.cuda.get_current_stream().ptr)
        self._ask("cublasSetWorkspace_v2", self._handle, self._workspace.data.ptr, WORKSPACE_BYTES)

    def gemmEx(self, handle: int, *arguments: int) -> None:
        """Call cublasGemmEx as CuPy's function of this name does, but with this object's handle."""
        self._ask("cublasGemmEx", self._handle, *arguments)

    def gemmStridedBatchedEx(self, handle: int, *arguments: int) -> None:
        """Call cublasGemmStridedBatchedEx as CuPy's function does, but with this object's handle."""
        self._ask("cublasGemmStridedBatchedEx", self._handle, *arguments)

    def _ask(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status} of cuBLAS")


def load() -> ctypes.CDLL:
    """Return cuBLAS, the same library that CuPy has loaded."""
    return ctypes.CDLL(import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cublas").abs_path)
