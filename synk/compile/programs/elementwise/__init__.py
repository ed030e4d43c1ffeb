"""Elementwise loops: a whole expression in one pass over memory.

    Elemwise node -> body (templates, one expression per scalar Op)
                  -> `synk.compile.regions`: C, for NumPy
                  -> cuda_source (cuda_access, cuda_packs)
                  -> cuda_kernels (CuPy's compiler and store, cuda_layout), for NVIDIA GPUs

`dialect_of` tells in which language an array module's kernels are written, if it has any.
"""

from functools import cache
from types import ModuleType

from synk.compile.programs.elementwise.body import has_template
from synk.compile.programs.elementwise.chain_writer import NoTemplate
from synk.compile.programs.elementwise.dialect import CUDA, Dialect
from synk.compile.programs.elementwise.templates import template
from synk.gpu.elementwise.cuda_kernels import CupyKernels

__all__ = [
    "CupyKernels",
    "NoTemplate",
    "cupy_kernels",
    "dialect_of",
    "has_template",
    "template",
]

cupy_kernels = cache(CupyKernels)


def dialect_of(xp: ModuleType) -> Dialect | None:
    """Return the language of an array module's kernels, or None if it has none."""
    return CUDA if xp.__name__ == "cupy" else None
