"""Write each scalar Op in C: arithmetic, comparison, choice and conversion.

A template takes the Op, the `Writer`, the inputs and the dtype of the output; it returns the expression
of the output, and raises `NoTemplate` for dtypes that it does not cover. The table is open:

    @template.register(MyOp)
    def my_op(scalar_op, write, inputs, dtype):
        (x,) = cast(write, inputs, dtype)
        return f"{x} * {x}"

Meaning follows NumPy: integers wrap, division by zero gives 0, maximum and minimum hand on NaN.
"""

from functools import singledispatch
from typing import Any

import numpy as np
from pytensor.scalar import basic

from synk.compile.programs.elementwise.chain_writer import NoTemplate, Value, Writer, type_name


@singledispatch
def template(scalar_op: Any, write: Writer, inputs: list[Value], dtype: str) -> str:
    """Return the expression that computes ``scalar_op``; raise NoTemplate if there is none."""
    raise NoTemplate(f"no template for {scalar_op}")


def cast(write: Writer, inputs: list[Value], dtype: str) -> list[Value]:
    """Convert all inputs to one dtype."""
    return [write.cast(value, dtype) for value in inputs]


def is_float(dtype: str) -> bool:
    """Tell whether a dtype is one of the floating-point ones that kernels compute in."""
    return dtype in ("float32", "float64")


def need_float(dtype: str) -> None:
    """Raise NoTemplate unless the dtype is a floating-point one that kernels compute in."""
    if not is_float(dtype):
        raise NoTemplate(f"computed in floating point, not in {dtype}")


def need_number(dtype: str) -> None:
    """Raise NoTemplate for bool, for which NumPy does not have the operation."""
    if dtype == "bool":
        raise NoTemplate("not defined for bool")


def wrap(expression: str, dtype: str) -> str:
    """Return the conversion of an unsigned result to ``dtype``: signed numbers must not overflow in C."""
    return f"{expression} != 0" if dtype == "bool" else f"({type_name(dtype)})({expression})"


def carrier(dtype: str) -> str:
    """Return the conversion to the unsigned type that integers of ``dtype`` are computed in."""
    if is_float(dtype):
        return ""
    return "(unsigned long long)" if np.dtype(dtype).itemsize == 8 else "(unsigned int)"


def arithmetic(symbol: str, left: Value, right: Value) -> str:
    """Write ``left symbol right`` for +, − and × in the dtype of both."""
    up = carrier(left.dtype)
    expression = f"{up}{left} {symbol} {up}{right}"
    return expression if not up else wrap(expression, left.dtype)


@template.register(basic.Add)
@template.register(basic.Mul)
def variadic(scalar_op, write, inputs, dtype):
    """Write a sum or product, from left to right."""
    symbol = "+" if isinstance(scalar_op, basic.Add) else "*"
    total, *rest = cast(write, inputs, dtype)
    for term in rest:
        total = write.let(arithmetic(symbol, total, term), dtype)
    return str(total)


@template.register(basic.Sub)
def sub(scalar_op, write, inputs, dtype):
    """Write a difference."""
    need_number(dtype)
    return arithmetic("-", *cast(write, inputs, dtype))


@template.register(basic.Neg)
def neg(scalar_op, write, inputs, dtype):
    """Write the negative; unsigned integers wrap."""
    need_number(dtype)
    (x,) = cast(write, inputs, dtype)
    return f"-{x}" if is_float(dtype) else wrap(f"-{carrier(dtype)}{x}", dtype)


@template.register(basic.Sqr)
def sqr(scalar_op, write, inputs, dtype):
    """Write the square."""
    (x,) = cast(write, inputs, dtype)
    return arithmetic("*", x, x)


@template.register(basic.TrueDiv)
def true_div(scalar_op, write, inputs, dtype):
    """Write a quotient in floating point."""
    need_float(dtype)
    x, y = cast(write, inputs, dtype)
    return f"{x} / {y}"


@template.register(basic.Reciprocal)
def reciprocal(scalar_op, write, inputs, dtype):
    """Write one over x."""
    need_float(dtype)
    (x,) = cast(write, inputs, dtype)
    return f"{write.literal(1, dtype)} / {x}"


@template.register(basic.Abs)
def absolute(scalar_op, write, inputs, dtype):
    """Write the magnitude; the lowest integer, which has none, stays."""
    (x,) = cast(write, inputs, dtype)
    if is_float(dtype):
        return str(write.call("fabs", x))
    return str(x) if dtype[0] in "bu" else f"{x} < 0 ? {wrap(f'-{carrier(dtype)}{x}', dtype)} : {x}"


@template.register(basic.Sign)
def sign(scalar_op, write, inputs, dtype):
    """Write -1, 0 or 1 by the sign of x; NaN stays."""
    need_number(dtype)
    (x,) = cast(write, inputs, dtype)
    signs = f"({type_name(dtype)})(({x} > 0) - ({x} < 0))"
    return f"{x} != {x} ? {x} : {signs}" if is_float(dtype) else signs


@template.register(basic.Maximum)
@template.register(basic.Minimum)
def extreme(scalar_op, write, inputs, dtype):
    """Write the larger or the smaller of two."""
    symbol = ">" if isinstance(scalar_op, basic.Maximum) else "<"
    return _extreme(write, symbol, *cast(write, inputs, dtype))


def _extreme(write: Writer, symbol: str, x: Value, y: Value) -> str:
    # Two choices, one after another, become vector instructions; one with || becomes branches.
    chosen = write.let(f"{x} {symbol} {y} ? {x} : {y}", x.dtype)
    # A comparison with NaN is false, so a NaN in y is chosen already.
    return f"{x} != {x} ? {x} : {chosen}" if is_float(x.dtype) else str(chosen)


@template.register(basic.Clip)
def clip(scalar_op, write, inputs, dtype):
    """Hold x between two bounds."""
    x, low, high = cast(write, inputs, dtype)
    raised = write.let(_extreme(write, ">", x, low), dtype)
    return _extreme(write, "<", raised, high)


@template.register(basic.Switch)
def switch(scalar_op, write, inputs, dtype):
    """Choose x where the condition holds, else y."""
    condition, *branches = inputs
    x, y = cast(write, branches, dtype)
    return f"{condition} != 0 ? {x} : {y}"


@template.register(basic.Second)
def second(scalar_op, write, inputs, dtype):
    """Pass the second input on."""
    return str(write.cast(inputs[1], dtype))


@template.register(basic.Identity)
@template.register(basic.Cast)
def convert(scalar_op, write, inputs, dtype):
    """Convert to another dtype, or copy."""
    return str(write.cast(inputs[0], dtype))


COMPARISONS = {basic.LT: "<", basic.GT: ">", basic.LE: "<=", basic.GE: ">=", basic.EQ: "==", basic.NEQ: "!="}


@template.register(basic.LogicalComparison)
def compare(scalar_op, write, inputs, dtype):
    """Compare in the dtype that holds both."""
    common = str(np.result_type(*[value.dtype for value in inputs]))
    if is_float(common) and not any(is_float(value.dtype) for value in inputs):
        raise NoTemplate("NumPy compares int64 with uint64 exactly; no common dtype holds both")
    x, y = cast(write, inputs, common)
    return f"{x} {COMPARISONS[type(scalar_op)]} {y}"


@template.register(basic.IsNan)
def is_nan(scalar_op, write, inputs, dtype):
    """Write a comparison that is true for NaN, the one number unequal to itself."""
    (x,) = inputs
    return f"{x} != {x}"


@template.register(basic.IsInf)
def is_inf(scalar_op, write, inputs, dtype):
    """Write a comparison that is true for infinities."""
    (x,) = inputs
    if not is_float(x.dtype):
        return "0"
    return f"{write.call('fabs', x)} == {write.literal(np.inf, x.dtype)}"


BITS = {basic.AND: "&", basic.OR: "|", basic.XOR: "^"}


@template.register(basic.BinaryBitOp)
def bitwise(scalar_op, write, inputs, dtype):
    """Write and, or, exclusive or; of bool too."""
    x, y = cast(write, inputs, dtype)
    return wrap(f"{x} {BITS[type(scalar_op)]} {y}", dtype)


@template.register(basic.Invert)
def invert(scalar_op, write, inputs, dtype):
    """Turn all bits the other way; of bool, write not."""
    (x,) = cast(write, inputs, dtype)
    return f"!{x}" if dtype == "bool" else wrap(f"~{x}", dtype)
