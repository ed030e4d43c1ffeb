"""The language of kernels, C or another one like it: which functions there are, and how constants look.

Types have the same names in all of them, those that need no ``stdint.h``.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from synk.compile.native.compiler import vector_functions
from synk.compile.native.special import SPECIAL

TYPES = {
    "bool": "unsigned char",  # 0 or 1
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}

# One instruction each, or no worse than NumPy's own loop.
PLAIN = frozenset({"fabs", "sqrt", "floor", "ceil", "trunc", "rint", "copysign", "fmod"})
# NumPy computes these on long vectors in two thirds of the time that C takes.
SLOWER = frozenset({"pow", "acosh"})


@dataclass(frozen=True)
class Dialect:
    """A language of kernels.

    Attributes
    ----------
    name : str
        "C", or the name of another language.
    functions : frozenset of str
        Functions of the mathematical library that may be called, by their name for double.
    special : dict
        By dtype, how infinity and NaN are written.
    """

    name: str
    functions: frozenset[str]
    special: dict[str, tuple[str, str]]

    def literal(self, value, dtype: str) -> str:
        """Return a number as a literal of type ``dtype``: a double would widen the expression around it."""
        number = np.dtype(dtype).type(value)
        if number.dtype.kind != "f":
            return _integer(int(number), dtype)
        if not np.isfinite(number):
            infinity, nan = self.special[dtype]
            return nan if np.isnan(number) else infinity if number > 0 else f"(-{infinity})"
        text = f"{number!s}{'f' if dtype == 'float32' else ''}"
        return f"({text})" if text.startswith("-") else text


def _integer(value: int, dtype: str) -> str:
    suffix = {"int64": "LL", "uint64": "ULL", "uint32": "U"}.get(dtype, "")
    # The most negative number has no positive twin for the minus sign to act on.
    lowest = dtype[0] != "u" and value == -(2 ** (8 * np.dtype(dtype).itemsize - 1))
    text = f"{value + 1 if lowest else value}{suffix}"
    return f"({text} - 1)" if lowest else f"({text})" if value < 0 else text


@cache
def native_dialect() -> Dialect:
    """Return C with the elementary functions that this machine computes on vectors."""
    special = {
        "float32": ("__builtin_inff()", '__builtin_nanf("")'),
        "float64": ("__builtin_inf()", '__builtin_nan("")'),
    }
    return Dialect("C", PLAIN | vector_functions() | SPECIAL, special)


def with_slower(dialect: Dialect) -> Dialect:
    """Return a dialect with the functions in `SLOWER` too, for places where NumPy is not the faster way.

    Such are loops in C and single numbers, where a call of NumPy costs more than it gains.
    """
    return replace(dialect, functions=dialect.functions | SLOWER)
