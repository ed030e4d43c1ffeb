"""Write each scalar Op in C: division with remainder, rounding and elementary functions."""

from pytensor.scalar import basic, math

from synk.compile.native.special import PREFIX
from synk.compile.programs.elementwise.templates import (
    arithmetic,
    carrier,
    cast,
    is_float,
    need_float,
    need_number,
    template,
    wrap,
)

FUNCTIONS = {
    basic.Pow: "pow",
    basic.ArcCosh: "acosh",
    basic.Sqrt: "sqrt",
    basic.Exp: "exp",
    basic.Exp2: "exp2",
    basic.Expm1: "expm1",
    basic.Log: "log",
    basic.Log2: "log2",
    basic.Log10: "log10",
    basic.Log1p: "log1p",
    basic.Sin: "sin",
    basic.Cos: "cos",
    basic.Tan: "tan",
    basic.ArcSin: "asin",
    basic.ArcCos: "acos",
    basic.ArcTan: "atan",
    basic.ArcTan2: "atan2",
    basic.Sinh: "sinh",
    basic.Cosh: "cosh",
    basic.Tanh: "tanh",
    basic.ArcSinh: "asinh",
    basic.ArcTanh: "atanh",
    basic.Floor: "floor",
    basic.Ceil: "ceil",
    basic.Trunc: "trunc",
    basic.RoundHalfToEven: "rint",
    math.Erf: "erf",
    math.Erfc: "erfc",
    **{
        op_class: f"{PREFIX}{op_class.__name__.lower()}"
        for op_class in (
            *(math.GammaLn, math.Psi, math.Gamma, math.Erfcx, math.Erfinv, math.Erfcinv),
            *(math.J0, math.J1, math.I0, math.I1, math.Jv, math.Ive, math.Kve, math.Owens_t),
            *(math.GammaInc, math.GammaIncC, math.GammaIncInv, math.GammaIncCInv),
            *(math.BetaInc, math.BetaIncInv, math.Hyp2F1),
        )
    },
}


def library_function(scalar_op, write, inputs, dtype):
    """Call a function of the mathematical library, in the dtype of the output."""
    need_float(dtype)
    return str(write.call(FUNCTIONS[type(scalar_op)], *cast(write, inputs, dtype)))


for scalar_class in FUNCTIONS:
    template.register(scalar_class, library_function)


@template.register(basic.Pow)
def power(scalar_op, write, inputs, dtype):
    """Write products for a constant exponent of 2, 3 or 4, as PyTensor's rewrites do, else call ``pow``."""
    x, exponent = cast(write, inputs[:1], dtype)[0], inputs[1].text
    if exponent.strip("LUf") not in ("2", "3", "4", "2.0", "3.0", "4.0"):
        return library_function(scalar_op, write, inputs, dtype)
    need_number(dtype)
    square = write.let(arithmetic("*", x, x), dtype)
    return str(square) if exponent[0] == "2" else arithmetic("*", square, x if exponent[0] == "3" else square)


@template.register(basic.RoundHalfAwayFromZero)
def round_half_away(scalar_op, write, inputs, dtype):
    """Write the nearest integer, halves away from zero.

    Infinity stays, since the difference to its whole part is NaN, which is not half or more.
    """
    need_float(dtype)
    (x,) = cast(write, inputs, dtype)
    whole = write.call("trunc", x)
    rest = write.call("fabs", write.let(f"{x} - {whole}", dtype))
    step = write.call("copysign", write.literal(1, dtype), x)
    return f"{rest} >= {write.literal(0.5, dtype)} ? {whole} + {step} : {whole}"


@template.register(basic.Mod)
def mod(scalar_op, write, inputs, dtype):
    """Write the remainder, with the sign of the divisor."""
    need_number(dtype)
    x, y = cast(write, inputs, dtype)
    if is_float(dtype):
        return str(_float_remainder(write, x, y))
    _, rest = _divide_integers(write, x, y)
    return f"{y} == 0 ? 0 : {rest}"


@template.register(basic.IntDiv)
def int_div(scalar_op, write, inputs, dtype):
    """Write the quotient, rounded down."""
    need_number(dtype)
    x, y = cast(write, inputs, dtype)
    if is_float(dtype):
        return _float_quotient(write, x, y)
    quotient, _ = _divide_integers(write, x, y)
    return f"{y} == 0 ? 0 : {quotient}"


def _divide_integers(write, x, y):
    """Return quotient and remainder with the divisor's sign, for a divisor that is not 0."""
    dtype = x.dtype
    if dtype[0] == "u":
        divisor = write.let(f"{y} == 0 ? 1 : {y}", dtype)
        return write.let(f"{x} / {divisor}", dtype), write.let(f"{x} % {divisor}", dtype)
    # Of magnitudes: dividing by 0, and the lowest number by -1, are traps; and GCC takes -x / y for -(x / y)
    # where it has x / y already, though the lowest x has no negative (12.2, whatever its flags). A choice by
    # sign would be guessed wrong every other time, so what is negated is (x ^ m) - m, where m is -1 or 0.
    up, wide = carrier(dtype), "uint64" if dtype == "int64" else "uint32"
    x_sign, y_sign = (write.let(f"-{up}({one} < 0)", wide) for one in (x, y))
    size = write.let(f"({up}{x} ^ {x_sign}) - {x_sign}", wide)
    divisor = write.let(f"({up}{y} ^ {y_sign}) - {y_sign} + ({y} == 0)", wide)
    sign = write.let(f"{x_sign} ^ {y_sign}", wide)
    quotient = write.let(f"({size} + (({divisor} - 1) & {sign})) / {divisor}", wide)
    floor = write.let(wrap(f"({quotient} ^ {sign}) - {sign}", dtype), dtype)
    return floor, write.let(wrap(f"{up}{x} - {up}{floor} * {up}{y}", dtype), dtype)


def _float_remainder(write, x, y):
    """Write NumPy's ``remainder``: fmod brought to the divisor's sign; a zero has that sign too."""
    rest = write.call("fmod", x, y)
    zero = write.call("copysign", write.literal(0, x.dtype), y)
    other = f"({rest} < 0) != ({y} < 0) ? {rest} + {y} : {rest}"
    return write.let(f"{rest} == 0 ? {zero} : {other}", x.dtype)


def _float_quotient(write, x, y):
    """Write NumPy's ``floor_divide``: the quotient without the remainder, brought to the nearest integer."""
    dtype = x.dtype
    rest = write.call("fmod", x, y)
    ratio = write.let(f"{x} / {y}", dtype)
    whole = write.let(f"({x} - {rest}) / {y}", dtype)
    down = write.let(f"({rest} != 0) & (({rest} < 0) != ({y} < 0)) ? {whole} - 1 : {whole}", dtype)
    floor = write.call("floor", down)
    snapped = write.let(f"{down} - {floor} > {write.literal(0.5, dtype)} ? {floor} + 1 : {floor}", dtype)
    zero = write.call("copysign", write.literal(0, dtype), ratio)
    return f"{y} == 0 ? {ratio} : ({down} == 0 ? {zero} : {snapped})"


@template.register(math.Sigmoid)
def sigmoid(scalar_op, write, inputs, dtype):
    """Write ``1 / (1 + exp(-x))``, with the exponential of a negative number only."""
    need_float(dtype)
    (x,) = cast(write, inputs, dtype)
    one, power = write.literal(1, dtype), _exp_minus_abs(write, x)
    return f"({x} < 0 ? {power} : {one}) / ({one} + {power})"


@template.register(math.Softplus)
def softplus(scalar_op, write, inputs, dtype):
    """Write ``log(1 + exp(x))`` as ``max(x, 0) + log1p(exp(-|x|))``."""
    need_float(dtype)
    (x,) = cast(write, inputs, dtype)
    rest = write.call("log1p", _exp_minus_abs(write, x))
    return f"({x} > 0 ? {x} : {write.literal(0, dtype)}) + {rest}"


def _exp_minus_abs(write, x):
    size = write.call("fabs", x)
    return write.call("exp", write.let(f"-{size}", x.dtype))


@template.register(math.Log1mexp)
def log1mexp(scalar_op, write, inputs, dtype):
    """Write ``log(1 - exp(x))`` of negative x, in the form that keeps precision on each side of -log 2."""
    need_float(dtype)
    (x,) = cast(write, inputs, dtype)
    power, power_minus_one = write.call("exp", x), write.call("expm1", x)
    small = write.call("log1p", write.let(f"-{power}", dtype))
    large = write.call("log", write.let(f"-{power_minus_one}", dtype))
    return f"{x} < {write.literal(-0.6931471805599453, dtype)} ? {small} : {large}"
