"""Compile what waits together, keep nothing, and let Python's programs be NumPy's functions alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from synk.compile import rewrites
from synk.compile.dispatch import elemwise
from synk.compile.regions import functions
from synk.compile.regions.compilation import NativeCompilation
from synk.native.compiler import find_compiler
from synk.native.libraries import Libraries
from synk.native.store import Store


class NoStore(Store):
    """A store that is always empty."""

    def find(self, name):
        return None

    def keep(self, name, library):
        """Keep nothing."""


@contextmanager
def compiled_together() -> Iterator[NativeCompilation]:
    """Compile regions with an empty store; where none are asked for, run NumPy's functions, one by one."""
    compilation = NativeCompilation(Libraries(find_compiler(), NoStore()))
    native, dialect_of, fused = functions.native_compilation, rewrites.dialect_of, elemwise.fused
    rewrites.step_rewriter()  # knows of fusion
    functions.native_compilation = lambda: compilation
    rewrites.dialect_of = lambda xp: dialect_of(xp) if rewrites._native.get() else None
    elemwise.fused = lambda *given: fused(*given) if rewrites._native.get() else None
    rewrites._inner_rewriter.cache_clear()
    try:
        yield compilation
    finally:
        functions.native_compilation, rewrites.dialect_of, elemwise.fused = native, dialect_of, fused
        rewrites._inner_rewriter.cache_clear()
