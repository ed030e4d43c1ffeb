"""Compile the C files of this package when they are first used, and find functions in them.

The files are compiled once a machine and dtype, all at a time, by the compiler that elementwise kernels
use, and kept in their store. Where that is not possible, a warning says so once and `Loop.form` answers None:
the caller has a NumPy version.

    common.c, name.c, dtype -> source -> Compiler, Store -> library -> Loop.form(dtype) -> function of C

Imports NumPy and the compiler and store of ``synk.compile.kernels``.
"""

import ctypes
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from synk.compile.kernels.compiler import CompileError, Compiler, find_compiler, vector_functions
from synk.compile.kernels.store import Store, name_of

# By dtype: the type of an element, an integer of its size, and the exponential function.
TYPES = {"float32": ("float", "int", "expf"), "float64": ("double", "long", "exp")}


FILES = ("batch_norm", "cross_entropy", "layer_norm", "pool")

# By file: those that come before it.
NEEDS = {"batch_norm": ("moments",)}


class ArrayArgument:
    """A C-contiguous array as an argument of a function of C: the address of its first element."""

    @staticmethod
    def from_param(array: np.ndarray) -> ctypes.c_void_p:
        """Return what ctypes passes on."""
        return ctypes.c_void_p(array.ctypes.data)


ARGUMENTS = {
    "a": ArrayArgument,
    "n": ctypes.c_long,
    "i": ctypes.c_int,
    "d": ctypes.c_double,
    "r": ctypes.c_void_p,
}


class Loop:
    """A function of a C file, in one form for each dtype.

    Parameters
    ----------
    file : str
        Name of the file, without suffix.
    name : str
        Name of the function.
    arguments : str
        A letter for each: "a" array, "n" long, "i" int, "d" double, "r" reference to a structure.
    returns : type of ctypes, optional
        What it returns.
    """

    def __init__(self, file: str, name: str, arguments: str, returns: type | None = None):
        self.file, self.name, self.returns = file, name, returns
        self.arguments = [ARGUMENTS[letter] for letter in arguments]
        self._forms: dict[str, Callable] = {}

    def form(self, dtype: np.dtype) -> Callable | None:
        """Return the function for arrays of ``dtype``, or None where it cannot be compiled.

        Raises
        ------
        TypeError
            The dtype is neither float32 nor float64.
        """
        kind = dtype.name
        if kind not in self._forms:
            if kind not in TYPES:
                raise TypeError(f"{self.name} takes float32 and float64, not {kind}; cast its input")
            compiled = libraries(kind)[self.file]
            if compiled is None:
                return None
            function = compiled[f"{self.name}_{kind}"]
            function.argtypes, function.restype = self.arguments, self.returns
            self._forms[kind] = function
        return self._forms[kind]


def available() -> bool:
    """Tell whether there is a compiler; the loops are compiled when they are first called."""
    return find_compiler() is not None


@cache
def libraries(dtype: str) -> dict[str, ctypes.CDLL | None]:
    """Return the compiled forms of all files for a dtype; None, with a warning, where there can be none."""
    compiler = find_compiler()
    if compiler is None:
        _warn("there is no C compiler", "install gcc, or set CC to a compiler")
        return dict.fromkeys(FILES)
    found: dict[str, ctypes.CDLL | None] = {}
    # The compiler runs in processes of its own: a network needs most files, and waits for the longest only.
    with ThreadPoolExecutor(len(FILES)) as pool:
        loading = {file: pool.submit(load, compiler, Store(), source(file, dtype)) for file in FILES}
    for file, loaded in loading.items():
        try:
            found[file] = loaded.result()
        except (CompileError, OSError) as error:
            _warn(str(error), "set CC to a C compiler that works")
            found[file] = None
    return found


def load(compiler: Compiler, store: Store, text: str) -> ctypes.CDLL:
    """Load a library from the store, or compile it and keep it there.

    Raises
    ------
    CompileError, OSError
        It cannot be compiled, or not be loaded.
    """
    name = name_of(compiler.fingerprint, text)
    kept = store.find(name)
    if kept is not None:
        try:
            return ctypes.CDLL(str(kept))
        except OSError:
            pass  # it is made anew
    # A library stays loaded when its file is gone.
    with tempfile.TemporaryDirectory(prefix="synk-") as folder:
        path = compiler.compile(text, Path(folder))
        compiled = ctypes.CDLL(str(path))
        store.keep(name, path)
    return compiled


def source(file: str, dtype: str) -> str:
    """Return the text of a C file for arrays of a dtype."""
    folder = files(__package__)
    common = folder.joinpath("common.c").read_text()
    text = "\n".join(folder.joinpath(f"{name}.c").read_text() for name in (*NEEDS.get(file, ()), file))
    vectors = '__attribute__((simd("notinbranch")))' if "exp" in vector_functions() else ""
    real, integer, exp = TYPES[dtype]
    values = {"REAL": real, "INT": integer, "EXP": exp, "NAME(f)": f"f##_{dtype}"}
    macros = [f"#define {macro} {value}" for macro, value in values.items()]
    return "\n".join([f"#define VECTORS {vectors}", common, *macros, text])


def _warn(reason: str, remedy: str) -> None:
    """Warn once a process: what fails for one file fails for all."""
    if remedy in _said:
        return
    _said.add(remedy)
    warnings.warn(
        f"{reason}\nNormalisation, pooling and cross-entropy run in NumPy, several times slower; {remedy}",
        stacklevel=4,
    )


_said: set[str] = set()
