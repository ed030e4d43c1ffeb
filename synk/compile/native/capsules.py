"""Capsules, in which extensions of Python give each other addresses."""

import ctypes
from typing import Any


def name_in(capsule: Any) -> bytes | None:
    """Return the name of a capsule, which may have none; that of a function of Cython's is its signature."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.argtypes, name.restype = (ctypes.py_object,), ctypes.c_char_p
    return name(capsule)


def pointer_in(capsule: Any) -> int:
    """Return the address in a capsule."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return pointer(capsule, name_in(capsule))
