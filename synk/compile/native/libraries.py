"""Load compiled libraries into this process: taken from the store, or compiled and kept there.

    name -> Libraries.find -> a library, or None
    texts -> Libraries.make -> a library for each, or why there is none

A library is loaded from a file in memory that holds the very bytes whose digest was checked. So nobody can
exchange them, the file cannot be cut short later, and no mount option forbids to run it. A library is
unloaded when nothing refers to it any more: a process may map 65,530 pieces of files, of which each library
takes five.
"""

import _ctypes
import ctypes
import hashlib
import itertools
import os
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np

from synk.compile.native.building import CompileError
from synk.compile.native.compiler import Compiler, find_compiler, why_none
from synk.compile.native.methods import layout_is_known
from synk.compile.native.store import Store


class SourceText(NamedTuple):
    """The C text of one library, and the names under which the store keeps the library."""

    source: str
    names: tuple[str, ...]


class Libraries:
    """The compiled libraries of this process, which it finds in a store or compiles and keeps there."""

    def __init__(self, compiler: Compiler, store: Store):
        self.compiler = compiler
        self.store = store
        # By digest, so that a library with several names is loaded once.
        self._loaded: weakref.WeakValueDictionary[bytes, ctypes.CDLL] = weakref.WeakValueDictionary()

    def find(self, name: str) -> ctypes.CDLL | None:
        """Return a library that the store has and that can be loaded, or None."""
        content = self.store.find(name)
        try:
            return None if content is None else self._load(content)
        except OSError:
            return None  # it is made anew

    def make(self, texts: Sequence[SourceText]) -> list[ctypes.CDLL | CompileError]:
        """Compile texts at the same time, load and keep the libraries; return each library, or its error.

        If several processes want the same library, one compiles it; the others wait, and find it in the
        store.
        """
        with self.store.lock(texts[0].names[0]):
            found: dict[SourceText, ctypes.CDLL | CompileError | None] = {t: self._kept(t) for t in texts}
            missing = [text for text in texts if found[text] is None]
            made = self.compiler.compile([text.source for text in missing]) if missing else []
            found.update({text: self._take(text, one) for text, one in zip(missing, made, strict=True)})
        return [library for text in texts if (library := found[text]) is not None]

    def _kept(self, text: SourceText) -> ctypes.CDLL | None:
        """Return the library that the store has under every name of a text; None for none or several."""
        first, *others = [self.find(name) for name in text.names]
        return first if all(other is first for other in others) else None

    def _take(self, text: SourceText, content: bytes | CompileError) -> ctypes.CDLL | CompileError:
        if isinstance(content, CompileError):
            return content
        try:
            library = self._load(content)
        except OSError as error:
            return CompileError(f"what {self.compiler.command[0]} makes cannot be loaded: {error}")
        for name in text.names:
            self.store.keep(name, content)
        return library

    def _load(self, content: bytes) -> ctypes.CDLL:
        digest = hashlib.sha256(content).digest()
        library = self._loaded.get(digest)
        if library is None:
            self._loaded[digest] = library = load(content)
        return library


@cache
def native_libraries() -> Libraries | None:
    """Return the libraries of this process; without a usable C compiler, warn and return None."""
    compiler = find_compiler()
    if compiler is not None and layout_is_known():
        keep_freed_memory()
        return Libraries(compiler, Store())
    if compiler is None:
        reason, remedy = f"there is no C compiler ({why_none()})", "install gcc, or set CC to a compiler"
    else:
        reason, remedy = "NumPy's arrays are not as expected", "install another NumPy"
    warnings.warn(f"{reason}, so graphs run in Python, several times slower; {remedy}", stacklevel=2)
    return None


LARGEST_OF_HEAP = 32 << 20  # bytes of what the C library takes from its heap at most


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, 64 MiB at most, for the arrays of the next call.

    Otherwise it gives large arrays back to the system after each call, and the next one meets a page fault
    for every 4 KiB. glibc learns from the largest array that it has freed, unless its thresholds have been
    set.
    """
    with suppress(MemoryError):
        np.empty(LARGEST_OF_HEAP - (1 << 16), "uint8")  # none of its pages is touched


def keep_loaded(library: ctypes.CDLL) -> np.ndarray:
    """Return an object that keeps a library loaded; functions that the library defines refer to it.

    The object is a NumPy array, because the garbage collector does not track arrays. It runs the finalizers
    of all objects that it tracks before it frees any, so functions that are freed together with a tracked
    object would read their definitions in a library that is unloaded already.
    """
    mapped = np.empty(0)
    weakref.finalize(mapped, _ctypes.dlclose, library._handle).atexit = False
    return mapped


_numbers = itertools.count(1)


def load(content: bytes) -> ctypes.CDLL:
    """Load a shared library, given the content of its file; its attribute ``mapped`` keeps it loaded.

    Raises OSError if the content is no library of this machine, or memory is short.
    """
    with open(os.memfd_create("synk-kernels", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        # For the same path the loader returns the library that it loaded first, and descriptors are used
        # again. So slashes and dots, which change nothing, make each path a new one.
        path = f"{next(_numbers):b}".replace("1", "./").replace("0", "/")
        library = ctypes.CDLL(f"/proc/self/fd/{path}{file.fileno()}")
    library.mapped = keep_loaded(library)  # type: ignore[attr-defined]
    return library
