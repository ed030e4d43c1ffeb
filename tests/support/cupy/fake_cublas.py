"""A fake of cuBLAS that multiplies on the host, reading and writing memory by columns, as told.

    fake_cublas.install(cupy)        # a module that passes for CuPy, whose arrays have addresses

``gemmEx`` and ``gemmStridedBatchedEx`` have the arguments of ``cupy_backends.cuda.libs.cublas`` in CuPy 14.2,
and refuse what cuBLAS refuses: leading dimensions that are too short, types that do not go together. The
types with which products were computed are in ``computed``. float32 by TF32 keeps 10 bits of each factor. A
sum for a result of 16 bits is shared by two kernels, which round their parts unless the handle forbids it.
"""

import ctypes
import os
import sys
from functools import wraps
from types import ModuleType, SimpleNamespace

import numpy as np

from support.cupy import stand_in
from synk.gpu.speedups import graphs

HANDLE, OWN_HANDLE = 4711, 4712  # CuPy's, and one that somebody made
COMPUTE_32F, COMPUTE_64F, COMPUTE_TF32 = 68, 70, 77
R_32F, R_64F, R_16F, R_16BF = 0, 1, 2, 14
SIZES = {R_32F: 4, R_64F: 8, R_16F: 2, R_16BF: 2}
COMBINATIONS = {
    COMPUTE_32F: {(R_16F, R_16F), (R_16F, R_32F), (R_16BF, R_16BF), (R_16BF, R_32F), (R_32F, R_32F)},
    COMPUTE_TF32: {(R_32F, R_32F)},
    COMPUTE_64F: {(R_64F, R_64F)},
}
WHOLE_SUMS = 16  # a bit of the handle's mode
computed = []
modes = {}  # by handle


class CUBLASError(RuntimeError):
    """The answers of cuBLAS, by name."""


# The names are CuPy's.
def gemmEx(
    handle,
    transa,
    transb,
    m,
    n,
    k,
    alpha,
    A,
    Atype,
    lda,
    B,
    Btype,
    ldb,
    beta,
    C,
    Ctype,
    ldc,
    computeType,
    algo,
):
    """One product."""
    a, b, c = (A, Atype, lda, 0), (B, Btype, ldb, 0), (C, Ctype, ldc, 0)
    gemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, *a, *b, beta, *c, 1, computeType, algo)


def gemmStridedBatchedEx(
    handle, transa, transb, m, n, k, alpha,
    A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc, strideC,
    batchCount, computeType, algo,
):  # fmt: skip
    """A batch of them."""
    refuse(handle not in modes, "CUBLAS_STATUS_NOT_INITIALIZED")
    lengths_fit = min(m, n, k) > 0 and lda >= (k if transa else m) and ldb >= (n if transb else k)
    strides_fit = batchCount == 1 or (strideA >= 0 and strideB >= 0 and strideC >= ldc * (n - 1) + m)
    refuse(not (lengths_fit and ldc >= m and strides_fit and batchCount > 0), "CUBLAS_STATUS_INVALID_VALUE")
    known = Atype == Btype and (Atype, Ctype) in COMBINATIONS[computeType] and algo == -1
    refuse(not known, "CUBLAS_STATUS_NOT_SUPPORTED")
    scalar = "float64" if computeType == COMPUTE_64F else "float32"
    size = np.dtype(scalar).itemsize
    scalars = [np.frombuffer((ctypes.c_char * size).from_address(p), scalar)[0] for p in (alpha, beta)]
    assert scalars == [1, 0]
    computed.append((computeType, Atype, Ctype, batchCount))
    stand_in.counts.launches += 1
    for i in range(batchCount):
        left = read(A, Atype, i * strideA, (k, m) if transa else (m, k), lda)
        right = read(B, Btype, i * strideB, (n, k) if transb else (k, n), ldb)
        left, right = [x.T if trans else x for x, trans in ((left, transa), (right, transb))]
        if computeType == COMPUTE_TF32:
            left, right = short(left), short(right)
        is_shared = SIZES[Ctype] == 2 and k > 1 and not modes[handle] & WHOLE_SUMS
        shares = [slice(0, k // 2), slice(k // 2, k)] if is_shared else [slice(k)]
        parts = [left[:, share].astype(scalar) @ right[share].astype(scalar) for share in shares]
        if is_shared:
            for part in parts:
                write(C, Ctype, i * strideC, (m, n), ldc, part)
                part[...] = read(C, Ctype, i * strideC, (m, n), ldc)
        write(C, Ctype, i * strideC, (m, n), ldc, sum(parts))


def own_library():
    """Return a fake of cuBLAS loaded by ctypes: arguments are converted to the C types of its functions."""
    c_int, pointer, long = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    operand, batched = (pointer, c_int, c_int), (pointer, c_int, c_int, long)
    head = (pointer, c_int, c_int, c_int, c_int, c_int, pointer)

    def create(handle):
        handle[0] = OWN_HANDLE
        modes[OWN_HANDLE] = 0
        return 0

    def set_mode(handle, mode):
        refuse(handle != OWN_HANDLE, "CUBLAS_STATUS_NOT_INITIALIZED")
        modes[handle] = mode
        return 0

    def function(fake, *types):
        return ctypes.CFUNCTYPE(c_int, *types)(fake)

    return SimpleNamespace(
        cublasCreate_v2=function(create, ctypes.POINTER(pointer)),
        cublasSetMathMode=function(set_mode, pointer, c_int),
        cublasSetStream_v2=function(lambda handle, stream: 0, pointer, pointer),
        cublasSetWorkspace_v2=function(
            lambda _, where, size: 0 if where and size >= 1 << 22 else 7, pointer, pointer, ctypes.c_size_t
        ),
        cublasGemmEx=function(_noted(gemmEx), *head, *operand, *operand, pointer, *operand, c_int, c_int),
        cublasGemmStridedBatchedEx=function(
            _noted(gemmStridedBatchedEx),
            *head, *batched, *batched, pointer, *batched, c_int, c_int, c_int,
        ),
    )  # fmt: skip


def _refusing(gemm):
    """Return a product as CuPy wraps it, which refuses to run while launches are recorded."""

    @wraps(gemm)
    def call(handle, *arguments):
        if stand_in.tape is not None:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        refuse(handle != HANDLE, "CUBLAS_STATUS_NOT_INITIALIZED")
        gemm(handle, *arguments)

    return call


def _noted(gemm):
    """Return a product that returns a status, and is recorded if launches are."""

    def again(*arguments):
        gemm(OWN_HANDLE, *arguments)
        stand_in.counts.launches -= 1  # the graph is launched, not what is in it

    def call(handle, *arguments):
        assert handle == OWN_HANDLE
        try:
            if stand_in.tape is not None:
                stand_in.tape.meet(written(gemm, arguments))
                stand_in.tape.note(again, arguments, {}, ())
            gemm(OWN_HANDLE, *arguments)
        except CUBLASError:
            return 15
        return 0

    return call


def written(gemm, arguments):
    """Return the memory that a product writes to."""
    _, _, m, n, _, *_ = arguments
    if gemm is gemmEx:
        *_, address, kind, leading, _, _ = arguments
        return columns(address, kind, 0, (m, n), leading)
    *_, address, kind, leading, step, count, _, _ = arguments
    return columns(address, kind, 0, (m, n + step * (count - 1) // leading), leading)


def refuse(condition, status):
    if condition:
        raise CUBLASError(status)


def columns(address, kind, start, shape, leading):
    """Return the memory of a matrix that lies by columns, as integers of its width."""
    size = SIZES[kind]
    rows, length = shape
    n_items = leading * (length - 1) + rows
    raw = (ctypes.c_char * (n_items * size)).from_address(address + start * size)
    items = np.frombuffer(raw, f"u{size}")
    return np.lib.stride_tricks.as_strided(items, shape, (size, leading * size))


def read(address, kind, start, shape, leading):
    words = columns(address, kind, start, shape, leading)
    if kind == R_16BF:
        return (words.astype("u4") << 16).view("f4")
    return words.copy().view(f"f{SIZES[kind]}")


def write(address, kind, start, shape, leading, values):
    words = columns(address, kind, start, shape, leading)
    if kind == R_16BF:
        bits = values.astype("f4").view("u4")
        words[...] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest, ties to even
    else:
        words[...] = values.astype(f"f{SIZES[kind]}").view(words.dtype)


def short(x):
    """Keep 10 bits of the fraction."""
    return (np.ascontiguousarray(x).view("u4") & np.uint32(0xFFFFE000)).view("f4")


# The names are CuPy's.
def setMathMode(handle, mode):
    """Set the mode in which a handle adds."""
    refuse(handle != HANDLE, "CUBLAS_STATUS_NOT_INITIALIZED")
    modes[handle] = mode


def get_compute_type(dtype):
    """Return the arithmetic of float32 products that the environment asks for, as CuPy does."""
    return 7 if np.dtype(dtype) == "float32" and os.environ.get("CUPY_TF32", "0") == "1" else 1


def install(cupy, setitem=dict.__setitem__):
    """Add a handle, the fake cuBLAS and the switch for TF32 to the fake CuPy."""
    cupy.cuda.device = SimpleNamespace(get_cublas_handle=lambda: HANDLE)
    modes[HANDLE] = 0
    computed.clear()
    library = ModuleType("cupy_backends.cuda.libs.cublas")
    library.setMathMode = setMathMode
    library.gemmEx, library.gemmStridedBatchedEx = _refusing(gemmEx), _refusing(gemmStridedBatchedEx)
    library.CUBLAS_COMPUTE_32F, library.CUBLAS_COMPUTE_64F = COMPUTE_32F, COMPUTE_64F
    library.CUBLAS_COMPUTE_32F_FAST_TF32, library.CUBLAS_GEMM_DEFAULT = COMPUTE_TF32, -1
    *packages, _ = library.__name__.split(".")
    for n in range(len(packages)):
        setitem(sys.modules, ".".join(packages[: n + 1]), ModuleType(".".join(packages[: n + 1])))
    # The package finds the library when it is asked for the module, which is not imported otherwise.
    sys.modules[".".join(packages)].cublas = library
    graphs.load = own_library
    linalg = sys.modules["cupy._core._routines_linalg"]
    linalg.get_compute_type, linalg.COMPUTE_TYPE_TF32 = get_compute_type, 7
