"""Make Python functions of compiled regions, and write into their libraries the addresses that they call.

    library, name -> method_of: addresses of functions of NumPy, SciPy and oneDNN -> a Python function

Regions read NumPy's arrays in memory by declarations in ``prelude.h``, which `layout_is_known` checks.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from synk.compile.native import bit_generators, routines, special
from synk.compile.native.capsules import pointer_in
from synk.compile.native.onednn_products import Pointers, faster_products

HEAD = object.__basicsize__
TABLES: dict[str, Callable[[], list[Any]]] = {
    "special": special.pointers,
    "drawing": bit_generators.pointers,
    "routines": routines.pointers,
}


class _Method(ctypes.Structure):
    """``PyMethodDef``, Python's description of a function in C."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def has_method(library: ctypes.CDLL | None, name: str) -> bool:
    """Tell whether ``library`` is a library, and has the region ``name``."""
    return hasattr(library, f"{name}_method")


def method_of(library: ctypes.CDLL, name: str, prelude: ctypes.CDLL) -> Callable[..., Any]:
    """Return the region ``name`` of a library as a Python function, connected to the functions that it calls.

    ``prelude`` is the library of the functions that all regions call. The Python function's ``__self__``,
    which the C code does not read, holds the objects that keep both libraries loaded.

    Raises AttributeError or ValueError if one of the libraries lacks a function.
    """
    method = _Method.in_dll(library, f"{name}_method")
    _fill_prelude(prelude)
    for table, pointers in TABLES.items():
        if hasattr(library, table):  # else no region of the library calls any
            found = pointers()
            (ctypes.c_void_p * len(found)).in_dll(library, table)[:] = found
    library["connect"](ctypes.byref(ctypes.c_void_p.in_dll(prelude, "functions")))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p), ctypes.py_object
    return make(ctypes.addressof(method), (library.mapped, prelude.mapped), None)


def _fill_prelude(prelude: ctypes.CDLL) -> None:
    """Write the addresses of NumPy's and oneDNN's functions into the prelude's library."""
    ctypes.c_void_p.in_dll(prelude, "ndarray").value = id(np.ndarray)
    ctypes.c_void_p.in_dll(prelude, "numpy").value = _numpy_functions()
    scalars = (ctypes.c_void_p * 24).in_dll(prelude, "scalars")
    for letter in "?bhilqBHILQfd":
        dtype = np.dtype(letter)
        scalars[dtype.num] = id(dtype.type)
    faster = faster_products()
    if faster is not None:
        onednn = Pointers.in_dll(prelude, "onednn")
        ctypes.pointer(onednn)[0] = faster.pointers


def _numpy_functions() -> int:
    """Return the address of NumPy's table of C functions, which extensions call."""
    core: Any = np._core if hasattr(np, "_core") else np.core
    return pointer_in(core._multiarray_umath._ARRAY_API)


def layout_is_known() -> bool:
    """Tell whether an array lies in memory as ``prelude.h`` declares it."""
    array = np.zeros((2, 3), "float32")[:, ::2]
    _, data, ndim, shape, strides, _, dtype, flags = _words(id(array) + HEAD - 8, 8)
    numbers = (ctypes.c_int32 * 2).from_address(id(array.dtype) + HEAD + 8)
    byteorder = numbers[0].to_bytes(4, "little")[2:3]
    return (
        _words(id(array) + HEAD - 8, 1) == [id(np.ndarray)]
        and data == array.ctypes.data
        and ndim & 0xFFFFFFFF == array.ndim
        and (dtype, flags & 0xFFFFFFFF) == (id(array.dtype), array.flags.num)
        and _words(shape, 2) == list(array.shape)
        and _words(strides, 2) == list(array.strides)
        and (byteorder, numbers[1]) == (b"=", array.dtype.num)
    )


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_ssize_t * count).from_address(address))
