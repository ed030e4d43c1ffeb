"""Read Python's capsules: objects by which C extensions give each other addresses."""

import ctypes
from typing import Any


def name_in(capsule: Any) -> bytes | None:
    """Return the name of a capsule, or None; Cython names the capsule of a function by its C signature."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.argtypes, name.restype = (ctypes.py_object,), ctypes.c_char_p
    return name(capsule)


def pointer_in(capsule: Any) -> int:
    """Return the address that a capsule holds."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return pointer(capsule, name_in(capsule))
