"""Compile the CUDA files of this package for a dtype, look up kernels in them, and prepare their arrays.

common.cu, name.cu, dtype -> source -> CuPy's RawModule (NVRTC, its cache on disk) -> kernel
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from synk.gpu.elementwise.cuda_source import OPTIONS
from synk.ops.kernels.plain_norm import deliver
from synk.ops.kernels.provider import arrays_for

ALIGNMENT = 16  # bytes, which one instruction reads


@dataclass(frozen=True)
class KernelDtype:
    """A dtype of arrays, and the macros that the text of a kernel needs for it."""

    real: str  # the dtype to compute in, which is also that of parameters
    vector: int  # elements in 16 bytes
    macros: dict[str, str]  # names in the CUDA files, and their replacements


def _kind(real: str, stored: str, vector: int, widen: str = "same", narrow: str = "same") -> KernelDtype:
    name, exp = ("double", "exp") if real == "float64" else ("float", "expf")
    macros = {"STORED": stored, "REAL": name, "EXP": exp, "WIDEN": widen, "NARROW": narrow}
    return KernelDtype(real, vector, macros)


KINDS = {
    "float32": _kind("float32", "float", 4),
    "float64": _kind("float64", "double", 2),
    "float16": _kind("float32", "Half", 8, "from_half", "to_half"),
    "bfloat16": _kind("float32", "Brain", 8, "from_brain", "to_brain"),
}

FILES = ("batch_norm", "cross_entropy", "layer_norm", "pool", "residual")

# CUDA types by dtype of a max-pool's index, and by whether there are too many elements to count in 32 bits.
PLACES = {"uint8": "unsigned char", "int32": "int"}
INDICES = {False: "int", True: "long long"}


def source(file: str, dtype: str, **macros: str | int) -> str:
    """Return the CUDA text of a file for arrays of a dtype; ``macros``, such as VECTOR, are defined in it."""
    folder = files(__package__)
    lines = [f"#define {name} {value}" for name, value in (KINDS[dtype].macros | macros).items()]
    return "\n".join([*lines, *(folder.joinpath(f"{name}.cu").read_text() for name in ("common", file))])


@cache
def kernel(xp: ModuleType, file: str, name: str, dtype: str, **macros: str | int) -> Callable:
    """Return a kernel: ``kernel(grid, block, arguments)``.

    Its file is compiled when one of its kernels is first looked up; CuPy compiles it for each kind of GPU.
    """
    return _module(xp, file, dtype, tuple(sorted(macros.items()))).get_function(name)


@cache
def _module(xp: ModuleType, file: str, dtype: str, macros: tuple[tuple[str, str | int], ...]) -> Any:
    return xp.RawModule(code=source(file, dtype, **dict(macros)), options=OPTIONS)


def lengths(*values: int) -> list[Any]:
    """Return lengths in the type that kernels take, ``long long``."""
    return [np.int64(value) for value in values]


def kind_of(array: Any) -> KernelDtype | None:
    """Return the entry of `KINDS` for an array; None if no kernel can compute it."""
    return KINDS.get(array.dtype.name) if array.size else None


def contiguous(xp: ModuleType, dtype: Any, *arrays: Any) -> list[Any]:
    """Return the arrays in C order and of this dtype; an array that is already so is not copied."""
    return [xp.ascontiguousarray(array.astype(dtype, copy=False)) for array in arrays]


def elements_at_once(kind: KernelDtype, row: int, *arrays: Any) -> int:
    """Return how many elements a kernel may read by one instruction: 16 bytes of them, or just one.

    It is 16 bytes if, in all arrays, each row of ``row`` elements starts at a multiple of 16 bytes.
    """
    aligned = row % kind.vector == 0 and all(array.data.ptr % ALIGNMENT == 0 for array in arrays)
    return kind.vector if aligned else 1


def in_real(
    xp: ModuleType, kind: KernelDtype, dtype: Any, places: Sequence[Any], *shapes: tuple[int, ...]
) -> list[Any]:
    """Return arrays to write results to, of the dtype to compute in: ``places`` if their dtype is that."""
    return arrays_for(xp, places if dtype == kind.real else None, kind.real, *shapes)


def in_dtype(dtype: Any, places: Sequence[Any], arrays: list[Any]) -> list[Any]:
    """Return the arrays of `in_real` in ``dtype``: themselves, or rounded copies in ``places``."""
    return arrays if arrays[0].dtype == dtype else list(deliver(places, dtype, *arrays))
