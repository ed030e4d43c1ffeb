"""Compile the C files of this package when they are first needed, and call their functions.

Files that go together are compiled at the same time, once for each machine and dtype, by the compiler of
elementwise kernels; the libraries are kept in the same store. Where that fails, a warning says so once, and
`CFunction.form` returns None: then the caller computes with NumPy.

    common.c, name.c, dtype -> source -> Libraries -> library -> CFunction.form(dtype) -> function of C
"""

import ctypes
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from synk.compile.native.building import CompileError
from synk.compile.native.compiler import find_compiler, vector_functions, why_none
from synk.compile.native.libraries import Libraries, SourceText
from synk.compile.native.store import Store, name_of

# By dtype: the type of an element, an integer of its size, and the exponential function.
TYPES = {"float32": ("float", "int", "expf"), "float64": ("double", "long", "exp")}

# Most networks need these: compiled at the same time, all take no longer than the longest.
TOGETHER = ("batch_norm", "cross_entropy", "layer_norm", "pool")
# Each of these is compiled when it is needed, since few networks need it.
APART = ("group_norm", "resampling")

# By file: the other files whose text is put before it.
NEEDS = {"batch_norm": ("moments", "channels"), "group_norm": ("moments", "channels")}

ARGUMENTS = {
    "a": ctypes.c_void_p,
    "n": ctypes.c_long,
    "i": ctypes.c_int,
    "d": ctypes.c_double,
    "r": ctypes.c_void_p,
}


class CFunction:
    """A function of a C file, in one form for each dtype.

    ``file`` lacks the suffix ".c". ``arguments`` has a letter for each argument: "a" is an array in C order,
    "n" a long, "i" an int, "d" a double, "r" a reference to a structure.
    """

    def __init__(self, file: str, name: str, arguments: str, returns: type | None = None):
        self.file, self.name, self.returns = file, name, returns
        self.arguments = [ARGUMENTS[letter] for letter in arguments]
        self._forms: dict[str, Callable] = {}

    def form(self, dtype: np.dtype) -> Callable | None:
        """Return the function for arrays of ``dtype``, or None where it cannot be compiled.

        Raise TypeError if the dtype is neither float32 nor float64.
        """
        kind = dtype.name
        if kind not in self._forms:
            if kind not in TYPES:
                raise TypeError(f"{self.name} takes float32 and float64, not {kind}; cast its input")
            compiled = libraries(kind, (self.file,) if self.file in APART else TOGETHER)[self.file]
            if compiled is None:
                return None
            function = getattr(compiled, f"{self.name}_{kind}", None)
            if function is None:
                _warn(f"the C compiler makes no {self.name}", "set CC to a C compiler that works")
                return None
            function.argtypes, function.restype = self.arguments, self.returns
            self._forms[kind] = by_address(function)
        return self._forms[kind]


def by_address(function: Callable) -> Callable:
    """Return ``function``, which takes addresses, as a function that takes arrays.

    The addresses are looked up before the call: in a ``from_param``, which ctypes calls, ^C would become an
    ArgumentError.
    """

    def call(*given: Any) -> Any:
        return function(*[value.ctypes.data if isinstance(value, np.ndarray) else value for value in given])

    return call


def contiguous(dtype: np.dtype, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the arrays in C order and of this dtype; an array that is already so is not copied."""
    return [np.ascontiguousarray(array, dtype) for array in arrays]


def available() -> bool:
    """Return whether there is a C compiler; nothing is compiled before a loop is first called."""
    return find_compiler() is not None


@cache
def libraries(dtype: str, names: tuple[str, ...]) -> dict[str, ctypes.CDLL | None]:
    """Return the library of each C file, for a dtype; None, after a warning, if it cannot be compiled."""
    compiler = find_compiler()
    if compiler is None:
        _warn(f"there is no C compiler ({why_none()})", "install gcc, or set CC to a compiler")
        return dict.fromkeys(names)
    found = load_all(Libraries(compiler, Store()), [source(file, dtype) for file in names])
    for library in found:
        if isinstance(library, CompileError):
            _warn(str(library), "set CC to a C compiler that works")
    loaded = [None if isinstance(library, CompileError) else library for library in found]
    return dict(zip(names, loaded, strict=True))


def load_all(libraries: Libraries, sources: Sequence[str]) -> list[ctypes.CDLL | CompileError]:
    """Return the library of each source, from the store; compile and store those that are not there."""
    texts = [SourceText(text, (name_of(libraries.compiler.fingerprint, text),)) for text in sources]
    found: dict[SourceText, Any] = {text: libraries.find(text.names[0]) for text in texts}
    missing = [text for text, library in found.items() if library is None]
    if missing:
        found.update(zip(missing, libraries.make(missing), strict=True))
    return [found[text] for text in texts]


def source(file: str, dtype: str) -> str:
    """Return the text of a C file for arrays of a dtype, with the text that it needs before it."""
    folder = files(__package__)
    common = folder.joinpath("common.c").read_text()
    text = "\n".join(folder.joinpath(f"{name}.c").read_text() for name in (*NEEDS.get(file, ()), file))
    vectors = '__attribute__((simd("notinbranch")))' if "exp" in vector_functions() else ""
    real, integer, exp = TYPES[dtype]
    values = {"REAL": real, "INT": integer, "EXP": exp, "NAME(f)": f"f##_{dtype}"}
    macros = [f"#define {macro} {value}" for macro, value in values.items()]
    return "\n".join([f"#define VECTORS {vectors}", common, *macros, text])


def _warn(reason: str, remedy: str) -> None:
    """Warn, but only once in a process for each remedy: what fails for one file mostly fails for all."""
    if remedy in _said:
        return
    _said.add(remedy)
    warnings.warn(
        f"{reason}\nNormalisation, pooling, changes of size and cross-entropy run in NumPy, several times "
        f"slower; {remedy}",
        stacklevel=4,
    )


_said: set[str] = set()
