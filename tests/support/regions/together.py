"""Compile all waiting regions at the same time, and keep no library."""

from collections.abc import Iterator
from contextlib import contextmanager

from synk.compile.native.compiler import find_compiler
from synk.compile.native.libraries import Libraries
from synk.compile.native.store import Store
from synk.compile.regions import functions
from synk.compile.regions.native_function import NativeCompilation


class NoStore(Store):
    """A store that is always empty."""

    def find(self, name):
        return None

    def keep(self, name, library):
        """Keep nothing."""


@contextmanager
def compiled_together() -> Iterator[NativeCompilation]:
    """Compile regions with an empty store."""
    compilation = NativeCompilation(Libraries(find_compiler(), NoStore()))
    native, functions.native_compilation = functions.native_compilation, lambda: compilation
    try:
        yield compilation
    finally:
        functions.native_compilation = native
