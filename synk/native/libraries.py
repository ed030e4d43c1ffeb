"""Machine code of this process: taken from the store, or compiled and kept there.

name -> Libraries.find -> a library, or None
texts -> Libraries.make -> a library for each, or why there is none
"""

import ctypes
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from synk.native.compilation import CompileError
from synk.native.compiler import Compiler
from synk.native.loading import load
from synk.native.store import Store


class SourceText(NamedTuple):
    """The C text of one library, and the names that it is kept by."""

    source: str
    names: tuple[str, ...]


class Libraries:
    """Libraries that a compiler made, now or in another process.

    Parameters
    ----------
    compiler : Compiler
    store : Store
        Keeps them.
    """

    def __init__(self, compiler: Compiler, store: Store):
        self.compiler = compiler
        self.store = store
        self._loaded: dict[bytes, ctypes.CDLL] = {}  # one that has several names is loaded once

    def find(self, name: str) -> ctypes.CDLL | None:
        """Return a library that the store has and that can be loaded, or None."""
        content = self.store.find(name)
        try:
            return None if content is None else self._load(content)
        except OSError:
            return None  # it is made anew

    def make(self, texts: Sequence[SourceText]) -> list[ctypes.CDLL | CompileError]:
        """Compile texts at the same time, load them and keep them; return a library or a reason for each."""
        made = self.compiler.compile([text.source for text in texts])
        return [self._take(text, content) for text, content in zip(texts, made, strict=True)]

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
        if digest not in self._loaded:
            self._loaded[digest] = load(content)
        return self._loaded[digest]
