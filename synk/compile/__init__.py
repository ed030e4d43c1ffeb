"""Compile PyTensor graphs to array programs, and carry graphs between processes.

    FunctionGraph -> ArrayLinker -> dispatch (one entry per Op) -> emit (Python source) -> Program
    Variables -> dumps -> bytes -> loads -> Variables

Imports NumPy, SciPy and PyTensor only, nothing else of synk.
"""

from synk.compile.debug import Debug, DebugError, debug_mode
from synk.compile.dispatch import array_funcify, array_scalar
from synk.compile.emit import Program, emit
from synk.compile.linker import ArrayLinker
from synk.compile.mode import array_mode
from synk.compile.profile import Profile
from synk.compile.serialize import dumps, loads
from synk.compile.substitute import substitute

__all__ = [
    "ArrayLinker",
    "Debug",
    "DebugError",
    "Profile",
    "Program",
    "array_funcify",
    "array_mode",
    "array_scalar",
    "debug_mode",
    "dumps",
    "emit",
    "loads",
    "substitute",
]
