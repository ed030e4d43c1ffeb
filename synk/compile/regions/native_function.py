"""Compile regions at the first call of one of them, together with all others that wait.

text -> NativeFunction -> (first call) NativeCompilation: the store has it, or the compiler makes it

All ranks call `agree` before the first call of a program. If one of them cannot compile what others can, all
run in Python: otherwise parameters that each rank updates would drift apart, from their last bits on.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from synk.compile.native.building import CompileError
from synk.compile.native.compiler import vector_functions
from synk.compile.native.libraries import Libraries, SourceText, native_libraries
from synk.compile.native.methods import has_method, method_of
from synk.compile.native.store import name_of
from synk.compile.regions.frame import prelude_file, source_file

# Characters of a C file, beyond which there are two files. Files are compiled at the same time, but functions
# that regions share are compiled again in each.
LONG = 20_000


class NativeFunction:
    """A function in C, compiled at its first call.

    Attributes
    ----------
    name : str
        A digest of all that its machine code depends on.
    source : str
        Its text, in which ``REGION`` stands for its name.
    declarations : sequence of str
        The texts that stand before it, in this order: functions that it calls, of regions and of the C
        library.
    call : callable
        Takes the arguments and, optionally, arrays for the results; returns the results, or None if the
        function gives up. Read this attribute at each call, because the first call replaces it.
    """

    def __init__(self, compilation: NativeCompilation, name: str, source: str, declarations: Sequence[str]):
        self.name, self.source, self.declarations = name, source, declarations
        self.call: Callable[..., Any] = self._first_call
        self._compilation = compilation

    def __len__(self) -> int:
        """Return the number of characters of the source and the declarations."""
        return sum(map(len, (self.source, *self.declarations)))

    def _first_call(self, *arguments: Any) -> Any:
        self._compilation.compile()
        return self.call(*arguments)


class NativeCompilation:
    """The C functions of one process; those that wait for their first call are compiled together."""

    def __init__(self, libraries: Libraries):
        self.libraries = libraries
        prelude = prelude_file()
        self._environment = "\n".join([libraries.compiler.fingerprint, *sorted(vector_functions()), prelude])
        self._prelude_text = SourceText(prelude, (name_of(self._environment),))
        self._prelude: Any = None  # the library of what all functions call
        self._functions: weakref.WeakSet[NativeFunction] = weakref.WeakSet()
        # A function that is compiled is kept while a `NativeFunction` calls it; its library goes with it.
        self._known: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()
        self._given_up = False  # whether all run in Python, as ranks do not compile alike
        self._failed = False  # whether a failure has been reported, which is done once
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """Take a new lock: in a forked child the old one may be held by a thread that is not there."""
        self._lock = threading.RLock()  # a signal's handler may come in the middle

    def function(self, source: str, declarations: Iterable[str]) -> NativeFunction:
        """Return a function for C source, which is compiled when any function that waits is first called."""
        declarations = tuple(declarations)
        name = name_of(self._environment, source, *declarations)
        function = NativeFunction(self, name, source, declarations)
        with self._lock:
            self._functions.add(function)
        return function

    def begin(self) -> None:
        """Compile the prelude, which all functions call; a failure is reported with the first function."""
        with self._lock:
            (library,) = self.libraries.make([self._prelude_text])
            if not isinstance(library, CompileError):
                self._prelude = library

    def compile(self) -> None:
        """Compile all functions that wait, at the same time, or take them from the store."""
        with self._lock:
            waiting = {f.name: f for f in self._functions if f.name not in self._known}
            made = self._made(waiting)
            self._known.update(made)
            self._connect()

    def outcome(self) -> str:
        """Compile all functions that wait; return a digest of those that failed, which ranks compare."""
        self.compile()
        failed = sorted(name for name, function in self._known.items() if function is gives_up)
        return name_of(self._environment, *failed)

    def give_up(self) -> None:
        """Run all functions in Python from now on."""
        with self._lock:
            self._given_up = True
            self._known.update({function.name: gives_up for function in self._functions})
            self._connect()
        self._say(CompileError("not all ranks compile C alike"))

    def _connect(self) -> None:
        for function in self._functions:
            function.call = self._known.get(function.name, function.call)

    def _made(self, functions: dict[str, NativeFunction]) -> dict[str, Callable[..., Any]]:
        """Return functions from the store, or compile them, and the prelude if that is not compiled yet."""
        if self._given_up or not functions:
            return dict.fromkeys(functions, gives_up)
        found: dict[str, Any] = {name: self.libraries.find(name) for name in functions}
        missing = {name: f for name, f in functions.items() if not has_method(found[name], name)}
        texts = grouped(missing) + ([] if self._prelude else [self._prelude_text])
        for text, library in zip(texts, self.libraries.make(texts) if texts else [], strict=True):
            found |= dict.fromkeys(text.names, library)
        self._prelude = found.pop(self._prelude_text.names[0], self._prelude)
        return {name: self._method(library, name) for name, library in found.items()}

    def _method(self, library: Any, name: str) -> Callable[..., Any]:
        try:
            for made in (self._prelude, library):
                if isinstance(made, CompileError):
                    raise made
            return method_of(library, name, self._prelude)
        except (AttributeError, ValueError, CompileError) as error:
            self._say(error)
            return gives_up

    def _say(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            made = "" if isinstance(error, CompileError) else "the C compiler makes something else: "
            warnings.warn(
                f"{made}{error}\nGraphs run in Python; set CC to a C compiler that works", stacklevel=5
            )


def grouped(functions: dict[str, NativeFunction]) -> list[SourceText]:
    """Divide functions among C files of similar lengths; longer texts make more files, up to one per core."""
    n_files = min(sum(map(len, functions.values())) // LONG + 1, len(functions), len(os.sched_getaffinity(0)))
    groups: list[dict[str, NativeFunction]] = [{} for _ in range(n_files)]
    for name, function in sorted(functions.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        min(groups, key=lambda group: sum(map(len, group.values())))[name] = function
    return [_file(group) for group in groups]


def _file(group: dict[str, NativeFunction]) -> SourceText:
    declarations = dict.fromkeys(text for function in group.values() for text in function.declarations)
    texts = {name: function.source for name, function in group.items()}
    return SourceText(source_file(texts, declarations), tuple(group))


def gives_up(*arguments: Any) -> None:
    """Return None, which tells the caller to compute in Python; replaces functions that do not compile."""


@cache
def native_compilation() -> NativeCompilation | None:
    """Return this process's compilation of C, or None if there is no compiler."""
    libraries = native_libraries()
    return None if libraries is None else NativeCompilation(libraries)


def begin() -> None:
    """Compile the prelude, which all regions call, so that the first region need not wait for it."""
    compilation = native_compilation()
    if compilation is not None:
        compilation.begin()


def agree(exchange: Callable[[np.ndarray], Sequence[np.ndarray]]) -> None:
    """Compile all functions that wait; run all of them in Python if they do not compile alike on all ranks.

    ``exchange(array)`` returns the arrays of all ranks; each calls this at the same time.
    """
    compilation = native_compilation()
    outcome = "no compiler" if compilation is None else compilation.outcome()
    outcomes = {bytes(one) for one in exchange(np.frombuffer(outcome.encode(), np.uint8))}
    if compilation is not None and len(outcomes) > 1:
        compilation.give_up()
