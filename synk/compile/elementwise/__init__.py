"""Elementwise kernels: loops that compute a whole expression in one pass over memory.

    Elemwise node -> body (templates, one expression per scalar Op)
                  -> c_source -> c_kernels (native: compiler, store, library), for NumPy
                  -> cuda_source (cuda_access, cuda_packs)
                  -> cuda_kernels (CuPy's compiler and store, cuda_layout), for NVIDIA GPUs

`kernels_for` tells whether an array module has kernels. Imports NumPy and PyTensor only.
"""

import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

from synk.compile.elementwise.body import has_template
from synk.compile.elementwise.c_kernels import CKernels
from synk.compile.elementwise.cuda_kernels import CupyKernels
from synk.compile.elementwise.templates import template
from synk.compile.elementwise.writer import NoTemplate
from synk.native.compiler import find_compiler, why_none
from synk.native.libraries import layout_is_known
from synk.native.store import Store

__all__ = [
    "CKernels",
    "CupyKernels",
    "NoTemplate",
    "has_template",
    "kernels_for",
    "numpy_kernels",
    "template",
]


@cache
def numpy_kernels() -> CKernels | None:
    """Return the kernels of NumPy arrays, or None, with a warning, where none can be made."""
    compiler = find_compiler()
    if compiler is not None and layout_is_known():
        return CKernels(compiler, Store())
    reason = (
        f"there is no C compiler ({why_none()})" if compiler is None else "NumPy's arrays are not as expected"
    )
    remedy = "install gcc, or set CC to a compiler" if compiler is None else "install another NumPy"
    warnings.warn(
        f"{reason}, so elementwise graphs run unfused, several times slower; {remedy}", stacklevel=2
    )
    return None


BACKENDS: dict[str, Callable[[ModuleType], CKernels | CupyKernels | None]] = {
    "numpy": lambda xp: numpy_kernels(),
    "cupy": cache(CupyKernels),
}


def kernels_for(xp: ModuleType) -> CKernels | CupyKernels | None:
    """Return the kernels of an array module, or None if it has none."""
    backend = BACKENDS.get(xp.__name__)
    return None if backend is None else backend(xp)
