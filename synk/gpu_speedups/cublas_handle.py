"""cuBLAS itself, for products that are recorded in a CUDA graph: CuPy's wrappers refuse those.

    Graphs.record -> CublasHandle.begin -> products of the program: gemmEx, gemmStridedBatchedEx

A recorded product writes to the workspace of its handle whenever it is launched again, so that of CuPy,
which belongs to others too, would not do. The names of arguments are those of cuBLAS. *Unrun* on GPUs.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

from synk.compile.dispatch.cublas import WHOLE_SUMS

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


class CublasHandle:
    """A handle with a workspace, for the recordings of one GPU.

    Parameters
    ----------
    cupy : module
    """

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
        """Work in the present stream from now on; it takes the workspace away, so that is given again."""
        self._ask("cublasSetStream_v2", self._handle, self._cupy.cuda.get_current_stream().ptr)
        self._ask("cublasSetWorkspace_v2", self._handle, self._workspace.data.ptr, WORKSPACE_BYTES)

    def gemmEx(self, handle: int, *arguments: int) -> None:
        """As CuPy's; the handle is this one's."""
        self._ask("cublasGemmEx", self._handle, *arguments)

    def gemmStridedBatchedEx(self, handle: int, *arguments: int) -> None:
        """As CuPy's; the handle is this one's."""
        self._ask("cublasGemmStridedBatchedEx", self._handle, *arguments)

    def _ask(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status} of cuBLAS")


def load() -> ctypes.CDLL:
    """Return the library that CuPy has loaded too."""
    return ctypes.CDLL(import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cublas").abs_path)
