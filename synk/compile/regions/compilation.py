"""The regions of one process: those that wait are compiled together, at the first call of one of them.

RegionFunction -> NativeCompilation: the store has it, or the compiler makes it -> a function of Python
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from synk.compile.regions.writer import source_file
from synk.native.compilation import CompileError
from synk.native.compiler import Compiler, find_compiler, vector_functions
from synk.native.libraries import Libraries, SourceText, method_of
from synk.native.store import Store, name_of

if TYPE_CHECKING:
    from synk.compile.regions.functions import RegionFunction


class NativeCompilation:
    """The regions of one process: those that wait are compiled together."""

    def __init__(self, compiler: Compiler, store: Store):
        self.libraries = Libraries(compiler, store)
        self._environment = "\n".join(
            [compiler.fingerprint, *sorted(vector_functions()), source_file({}, set())]
        )
        self._waiting: list[weakref.ref[RegionFunction]] = []
        self._known: dict[str, Callable[..., Any]] = {}
        self._failed = False  # which is said once
        self._lock = threading.Lock()

    def add(self, function: RegionFunction) -> None:
        """Let a region wait."""
        self._waiting.append(weakref.ref(function))

    def compile(self, wanted: RegionFunction) -> None:
        """Give a region, and all that wait, their functions: from the store, or compiled at the same time."""
        with self._lock:
            self._compile(wanted)

    def _compile(self, wanted: RegionFunction) -> None:
        # It may not wait any more: an interrupt may have ended what was to compile it.
        everyone = [wanted, *(f for ref in self._waiting if (f := ref()) is not None)]
        waiting = {self._name(f): f for f in everyone}
        self._waiting.clear()
        missing = {name: f for name, f in waiting.items() if not self._find(name)}
        texts = [
            SourceText(source_file({name: f.source}, f.declarations), (name,)) for name, f in missing.items()
        ]
        for name, library in zip(missing, self.libraries.make(texts) if texts else [], strict=True):
            if isinstance(library, CompileError):
                self._known[name] = gives_up
                self._say(library)
            else:
                self._known[name] = method_of(library, name)
        for function in everyone:
            function.function = self._known[self._name(function)]

    def _name(self, function: RegionFunction) -> str:
        return name_of(self._environment, function.source, *sorted(function.declarations))

    def _find(self, name: str) -> bool:
        if name not in self._known:
            library = self.libraries.find(name)
            if library is None:
                return False
            try:
                self._known[name] = method_of(library, name)
            except (AttributeError, ValueError):
                return False
        return True

    def _say(self, error: CompileError) -> None:
        if not self._failed:
            self._failed = True
            warnings.warn(f"{error}\nGraphs run in Python; set CC to a C compiler that works", stacklevel=4)


def gives_up(*arguments: Any) -> None:
    """Stand for a function that did not compile."""


@cache
def native_compilation() -> NativeCompilation | None:
    """Return this process's compilation of C, or None if there is no compiler."""
    compiler = find_compiler()
    return None if compiler is None else NativeCompilation(compiler, Store())
