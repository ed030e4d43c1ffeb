"""Write statements that compute one element.

    const float t0 = x0 * 0.9f;
    const float t1 = t0 + x1;

A template asks for what it needs, and each value is computed once:

    e = write.call("exp", x)
    return f"{one} / ({one} + {e})"
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from synk.compile.programs.elementwise.dialect import TYPES, Dialect


class NoTemplate(NotImplementedError):
    """A scalar Op cannot be written for certain dtypes, or in a dialect."""


class Value(NamedTuple):
    """A name or a literal in the text, such as ``t3`` or ``1.5f``, with its dtype."""

    text: str
    dtype: str

    def __str__(self) -> str:
        return self.text


COMMON = tuple(k / 2 for k in range(-4, 5))  # constants that many graphs have
SOME = 256  # steps between two looks for signals


class Writer:
    """The statements of a body while it is written; each names one value.

    Attributes
    ----------
    lines : list of str
        The statements so far.
    functions : set of (str, str, int)
        Mathematical functions called: name for double, dtype, number of arguments.
    constants : list of (str, str)
        Dtypes and literals of the constants that are parameters, ``c0, c1, ...``.
    repeats : bool
        Whether some statements are in a loop, see `steps`.
    """

    def __init__(self, dialect: Dialect):
        self.dialect = dialect
        self.lines: list[str] = []
        self.functions: set[tuple[str, str, int]] = set()
        self.constants: list[tuple[str, str]] = []
        self.repeats = False

    def let(self, expression: str, dtype: str) -> Value:
        """Add a statement that names the value of ``expression``, of type ``dtype``."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"const {type_name(dtype)} {name} = {expression};")
        return Value(name, dtype)

    def declare_variable(self, start: Value, dtype: str) -> Value:
        """Add a statement that names a variable of type ``dtype``, which later statements `set`."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"{type_name(dtype)} {name} = {start};")
        return Value(name, dtype)

    def set(self, name: Value, value: Value) -> None:
        """Add a statement that assigns a value to a variable named by `declare_variable`."""
        self.lines.append(f"{name} = {value};")

    @contextmanager
    def steps(self, condition: str) -> Iterator[None]:
        """Put the statements of this context into a loop over i = 0, 1, ..., while a condition holds."""
        self.repeats = True
        self.lines.append(f"for (long i = 0; {condition}; i++) {{")
        self.lines.append(f"if (i % {SOME} == 0 && !goes_on()) break;")
        yield
        self.lines.append("}")

    def literal(self, value, dtype: str) -> Value:
        """Return a number of type ``dtype`` as a literal."""
        type_name(dtype)
        return Value(self.dialect.literal(value, dtype), dtype)

    def constant(self, value, dtype: str) -> Value:
        """Return a constant of the graph: a literal, or in C a parameter unless many graphs have the number.

        Loops that differ only in their parameters are compiled once.
        """
        literal = self.literal(value, dtype)
        if self.dialect.name != "C" or not dtype.startswith("float") or value in COMMON:
            return literal
        self.constants.append((dtype, str(literal)))
        return Value(f"c{len(self.constants) - 1}", dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """Convert a value to another dtype; numbers that do not fit become those of NumPy on the CPU."""
        if value.dtype == dtype:
            return value
        if dtype == "bool":
            return self.let(f"{value} != 0", dtype)
        if value.dtype in ("int32", "int64") and dtype.startswith("float"):
            # A compiler that sees a float become an integer and a float again takes trunc, which keeps -0.0.
            return self.let(f"{value} == 0 ? 0 : ({type_name(dtype)}){value}", dtype)
        if not value.dtype.startswith("float") or dtype.startswith("float"):
            return self.let(f"({type_name(dtype)}){value}", dtype)
        return self._to_integer(value, dtype)

    def _to_integer(self, value: Value, dtype: str) -> Value:
        width = np.dtype(dtype).itemsize
        if width < 4:
            # Straight to a narrow integer, vectors would saturate where scalars wrap.
            return self.let(f"({type_name(dtype)})(int){value}", dtype)
        if not dtype.startswith("u"):
            return self.let(f"({type_name(dtype)}){value}", dtype)
        # By way of signed numbers, the upper half moved down and back: negative numbers wrap.
        half = 2 ** (8 * width - 1)
        limit, top = self.literal(half, value.dtype), self.literal(half, dtype)
        upper = self.let(f"{value} >= {limit}", "bool")
        low = self.let(f"{upper} ? {value} - {limit} : {value}", value.dtype)
        bits = self.let(f"({type_name(dtype)})({type_name(dtype[1:])}){low}", dtype)
        return self.let(f"{upper} ? {bits} ^ {top} : {bits}", dtype)

    def call(self, function: str, *arguments: Value) -> Value:
        """Call a function of the mathematical library on floating-point values of one dtype."""
        dtype = arguments[0].dtype
        if function not in self.dialect.functions or not dtype.startswith("float"):
            raise NoTemplate(f"{function} of {dtype} is not among the functions of {self.dialect.name}")
        self.functions.add((function, dtype, len(arguments)))
        suffix = "f" if dtype == "float32" else ""
        return self.let(f"{function}{suffix}({', '.join(map(str, arguments))})", dtype)


def type_name(dtype: str) -> str:
    """Return the type of C for a dtype; raise NoTemplate where there is none."""
    if dtype not in TYPES:
        raise NoTemplate(f"kernels do not compute in {dtype}")
    return TYPES[dtype]
