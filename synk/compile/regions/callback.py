"""Give samplers and solvers a C function for a program that is one region, so that no Python line runs.

program, arguments -> only_region -> RegionCall -> Callback: the function's address, and that of its data
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from synk.compile.native.libraries import SourceText, native_libraries
from synk.compile.native.store import name_of
from synk.compile.programs.text.program import Program
from synk.compile.regions.frame import HEAD
from synk.compile.regions.functions import RegionFunction

# Takes the GIL, as regions make NumPy's arrays; they release it during long loops.
TEXT = f"""\
{HEAD}

typedef struct {{
    char head[HEAD - sizeof(void *)];
    void *type;
    double *data;
}} Array;

typedef struct {{
    Array *(*region)(void *self, void *const *given, long n_given);
    void *const *given;
    unsigned long n_given, size;
    double *point;
    void *ndarray, *fallback;
}} Data;

extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int), PyErr_Clear(void), Py_DecRef(void *);
extern void *PyObject_CallNoArgs(void *), *memcpy(void *, const void *, unsigned long);

static long all_finite(unsigned long n, const double *x)
{{
    double sum = 0;
    for (unsigned long k = 0; k < n; k++)
        sum += x[k] - x[k];
    return sum == 0;
}}

long value_and_gradient(
    unsigned long n, const double *point, double *gradient, double *value, const Data *data)
{{
    if (n != data->size)
        return -1;
    const int held = PyGILState_Ensure();
    memcpy(data->point, point, n * sizeof *point);
    Array *made = data->region(0, data->given, data->n_given);
    if (!made || made->type != data->ndarray) {{ /* it gave up */
        PyErr_Clear();
        if (made)
            Py_DecRef(made);
        made = PyObject_CallNoArgs(data->fallback);
    }}
    if (made) {{
        *value = *made->data;
        memcpy(gradient, made->data + 1, n * sizeof *point);
        Py_DecRef(made);
    }} else
        PyErr_Clear();
    PyGILState_Release(held);
    return !made ? 1 : !all_finite(n, gradient) ? 3 : !all_finite(1, value) ? 4 : 0;
}}
"""


class RegionCall(NamedTuple):
    """A call of a region: its Python function, and the arguments."""

    function: BuiltinFunctionType
    given: tuple[Any, ...]


class Callback:
    """A function in C that computes a value and its gradient at a point, in any thread.

    Its signature is that of nutpie's log-densities: ``int64 (uint64 size, const double *point,
    double *gradient, double *value, void *data)``; it returns 0, -1 for another size, and positive numbers
    where something is not finite or ``fallback`` raised.

    Parameters
    ----------
    call : RegionCall
        Returns a float64 vector: the value, then the gradient.
    point : ndarray of float64
        One of the arguments of ``call``; each call of the C function writes the point into it.
    fallback : callable
        Returns the same vector, computed in Python; it is called where the region gives up.

    Attributes
    ----------
    address, data : int
        The addresses of the function and of its ``data``, which are valid as long as this object lives.
    """

    def __init__(self, call: RegionCall, point: np.ndarray, fallback: Callable[[], np.ndarray]):
        self.address = _address()
        given = (ctypes.py_object * len(call.given))(*call.given)
        pointer = ctypes.pythonapi.PyCFunction_GetFunction
        pointer.argtypes, pointer.restype = (ctypes.py_object,), ctypes.c_void_p
        self._data = _Data(
            pointer(call.function),
            ctypes.addressof(given),
            len(call.given),
            point.size,
            point.ctypes.data,
            id(np.ndarray),
            fallback,
        )
        self._kept = call, given, point
        self.data = ctypes.addressof(self._data)


class _Data(ctypes.Structure):
    _fields_ = (
        ("region", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("n_given", ctypes.c_ulong),
        ("size", ctypes.c_ulong),
        ("point", ctypes.c_void_p),
        ("ndarray", ctypes.c_void_p),
        ("fallback", ctypes.py_object),
    )


def callback_of(
    call: RegionCall | None, point: np.ndarray, fallback: Callable[[], np.ndarray]
) -> Callback | None:
    """Return the callback, or None if C cannot read what the call returns, or does not compile."""
    result = None if call is None else call.function(*call.given)
    if (
        call is None
        or not isinstance(result, np.ndarray)
        or (result.dtype, result.shape) != (np.dtype("float64"), (1 + point.size,))
        or not result.flags.c_contiguous
        or not _address()
    ):
        return None
    return Callback(call, point, fallback)


def _address() -> int:
    """Return the address of the C function that all callbacks share; 0 if it does not compile."""
    library = _library()
    return 0 if library is None else ctypes.cast(library.value_and_gradient, ctypes.c_void_p).value or 0


@cache
def _library() -> ctypes.CDLL | None:
    """Compile that function once; the library stays loaded, since samplers may call it at any time."""
    libraries = native_libraries()
    assert libraries is not None, "a region has been compiled"
    (library,) = libraries.make([SourceText(TEXT, (name_of(libraries.compiler.fingerprint, TEXT),))])
    return None if isinstance(library, Exception) else library


def only_region(program: Program, arguments: Sequence[Any]) -> RegionCall | None:
    """Return the call of a region that is all that a program does with these arguments.

    None if the program does more, or if the region draws random numbers or does not run in C.
    """
    namespace = program.function.__globals__
    regions = {name: value for name, value in namespace.items() if isinstance(value, RegionFunction)}
    if len(program.nodes) != 1 or not regions or program.function.__code__.co_argcount != len(arguments):
        return None
    ((name, region),) = regions.items()
    calls = []

    def noted(*given: Any, out: Any = None) -> Any:
        calls.append(given)
        return region(*given, out=out)

    FunctionType(program.function.__code__, namespace | {name: noted})(*arguments)
    (given,), function = calls, region.native.call
    return (
        RegionCall(function, given) if region.is_pure and isinstance(function, BuiltinFunctionType) else None
    )
