"""Pickle functions and classes of the script by value: no other process knows them as they are now.

All other functions and classes are pickled by name, and the receiver imports them from their modules.

    CodePickler -> bytes, and a `Code`: the functions and classes among them -> pickle.loads
    Code.has_changed: the script has redefined one of them since

Each function or class travels with a token. When it comes back to the process that defined it, that process
finds its original by the token; any other process makes a copy.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import sys
import uuid
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from synk.values import assigned
from synk.values.modules import is_own, reached

SCRIPT = "__main__"
ABSENT = object()  # stands for the value of a name that a mapping or an object does not have
# This note is added to the error of a rank that cannot find a name while it unpickles.
UNKNOWN = (
    "a worker looks for modules where it did when it was forked: synk.restart() makes workers that find what "
    "the script has imported since"
)
BEGUN = uuid.uuid4().hex  # a name for this process and its forks, for tokens
CODE = FunctionType, type
CACHED = type(lru_cache(len))  # pickle would send these functions by name

_tokens: weakref.WeakKeyDictionary[Any, tuple[str, int]] = weakref.WeakKeyDictionary()
_defined: weakref.WeakValueDictionary[tuple[str, int], Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle a value; functions and classes in it that the script has defined are pickled by value.

    ``buffer_callback`` is that of `pickle.dumps`.
    """
    return dumped(value, buffer_callback)[0]


def dumped(
    value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> tuple[bytes, Code]:
    """Pickle a value as `dumps` does; return the bytes, and the functions and classes that are in them."""
    file = io.BytesIO()
    pickler = CodePickler(file, buffer_callback)
    pickler.dump(value)
    return file.getvalue(), pickler.code


def is_of_script(value: Any) -> bool:
    """Tell whether a function or class was defined by the script, or by another script that it has run."""
    module = getattr(value, "__module__", None)
    return module == SCRIPT or (isinstance(module, str) and module not in sys.modules)


class Code:
    """The functions and classes that one pickling sent by value, with the globals that they read then.

    Attributes
    ----------
    modules : set of str
        Modules that the receiver imports.
    is_sent : bool
        Whether any function or class was sent by value.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.is_sent = False
        self._named: dict[tuple[int, Any], tuple[Mapping[Any, Any], Any, Any]] = {}
        self._held: list[tuple[Any, str, Any]] = []
        # Names that the code itself assigns. Ranks do so by themselves, so a new value is no redefinition.
        self._written: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._named or self._held)

    def note(self, mapping: Mapping[Any, Any], name: Any) -> None:
        """Record the value that ``mapping`` has under ``name`` now, or that it has none."""
        self._named[id(mapping), name] = mapping, name, mapping.get(name, ABSENT)

    def note_module(self, name: str) -> None:
        """Record a module that the receiver imports, by its ``__spec__``, which a reload replaces."""
        if name not in self.modules:
            self.modules.add(name)
            for one in filter(is_own, reached([name])):
                self._hold(sys.modules[one], "__spec__")

    def note_function(self, function: FunctionType) -> None:
        """Record a function, its closure, and the present values of the globals that it reads."""
        self.is_sent = True
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for name in assigned.globals_read(function.__code__):
            self.note(function.__globals__, name)
        self._hold(function, "__code__", "__defaults__", "__kwdefaults__")
        for cell in cells.values():
            self._hold(cell, "cell_contents")
        for name in assigned.globals_of(function.__code__):
            self._written.add((id(function.__globals__), name))
        for name in assigned.cells_of(function.__code__):
            self._written.add((id(cells[name]), "cell_contents"))
        for holder, name in assigned.attributes_of(function.__code__):
            kind = (
                _held_by(cells[holder], "cell_contents")
                if holder in cells
                else function.__globals__.get(holder)
            )
            self._written.add((id(kind), name))

    def note_class(self, kind: type) -> None:
        """Record a class with its attributes, except the caches that an abstract base class keeps there."""
        self.is_sent = True
        members = vars(kind)
        for name in members:
            if name != "_abc_impl":
                self._held.append((kind, name, members[name]))
            self._written |= {(id(kind), one) for one in assigned.attributes_of_class(members[name])}

    def _hold(self, holder: Any, *names: str) -> None:
        self._held += [(holder, name, _held_by(holder, name)) for name in names]

    def unsendable(self) -> str:
        """Return, for an error, which global that the code reads cannot be pickled; "" if all can."""
        for _, name, value in self._named.values():
            try:
                dumps(value)
            except Exception as error:
                return f" (global {name!r}, which it reads: {error})"
        return ""

    def has_changed(self) -> bool:
        """Tell whether the script has redefined or reloaded anything that was sent."""
        for mapping, name, value in self._named.values():
            if mapping.get(name, ABSENT) is not value and (id(mapping), name) not in self._written:
                return True
        for holder, name, value in self._held:
            if _held_by(holder, name) is not value and (id(holder), name) not in self._written:
                return True
        return False


def _is_of_library(obj: Any) -> bool:
    """Tell whether a function or class is this package's or NumPy's, as most in messages are.

    This is a quick check that spares them the slower one of cloudpickle.
    """
    name = obj.__module__
    if name not in sys.modules or not name.startswith(("synk.", "numpy")):
        return False
    return vars(sys.modules[name]).get(obj.__name__) is obj


def _held_by(holder: Any, name: str) -> Any:
    if isinstance(holder, type):
        return vars(holder).get(name, ABSENT)
    return getattr(holder, name, ABSENT)  # a cell may be empty


class CodePickler(cloudpickle.Pickler):
    """A pickler of protocol 5 that records in ``code`` the functions and classes that it sends by value."""

    def __init__(self, file: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None):
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.code = Code()

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, CODE):
            if isinstance(obj, CACHED) and is_of_script(obj):
                return made, (_token_of(obj), cached, (obj.__wrapped__, obj.cache_parameters()))
            if isinstance(obj, ModuleType):
                self.code.note_module(obj.__name__)
            return NotImplemented
        if _is_of_library(obj):
            self.code.modules.add(obj.__module__)
            return NotImplemented
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            self.code.note_module(obj.__module__)
            return reduced
        if len(reduced) < 6:  # for the type of a builtin constant, such as None, cloudpickle returns less
            return reduced
        make, arguments, state, _, _, put = reduced
        if isinstance(obj, FunctionType):
            self.code.note_function(obj)
        else:
            self.code.note_class(obj)
        token = _token_of(obj)
        return made, (token, make, arguments), (token, put, state), None, None, fill


def made(token: tuple[str, int], make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the function or class that ``token`` stands for.

    In the process that has defined it, that is the original. Another process makes a copy by
    ``make(*arguments)``, which `fill` then completes; the copy keeps the token, so that the original is found
    when it is sent back.
    """
    known = _known(token)
    if known is None:
        known = make(*arguments)
        _tokens[known] = token  # the process that defined it finds the original by this token
    return known


def fill(obj: Any, state: tuple[Any, ...]) -> Any:
    """Give a copy of a function or class its attributes; an original of this process is left as it is.

    ``state`` is the token, the function that sets the attributes, and the attributes.
    """
    token, put, content = state
    if _known(token) is None:
        put(obj, content)
    return obj


def cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Return a copy of the script's cached function for this process: ``function`` with an empty cache."""
    return lru_cache(**parameters)(function)


def _known(token: tuple[str, int]) -> Any:
    return _defined.get(token) if token[0] == _here() else None


def _here() -> str:
    return f"{BEGUN}-{os.getpid()}"


def _token_of(obj: Any) -> tuple[str, int]:
    token = _tokens.get(obj)
    if token is None:
        token = _tokens[obj] = _here(), next(_numbers)
        _defined[token] = obj
    return token
