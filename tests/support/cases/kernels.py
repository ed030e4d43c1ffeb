"""Tables of the scalar Ops that kernels compute, with dtypes, NumPy's functions and awkward numbers.

For the tests of kernels in ``tests/compile``, in C and in CUDA.
"""

import numpy as np
import scipy.special
from pytensor.scalar import basic, math

from synk.compile.programs.elementwise.dialect import TYPES

INTEGERS = [dtype for dtype in TYPES if "int" in dtype]
FLOATS = ["float32", "float64"]
ALL = ["bool", *INTEGERS, *FLOATS]

EXACT = {
    basic.add: (np.add, ALL),
    basic.mul: (np.multiply, ALL),
    basic.sub: (np.subtract, INTEGERS + FLOATS),
    basic.neg: (np.negative, INTEGERS + FLOATS),
    basic.sqr: (np.square, INTEGERS + FLOATS),
    basic.abs: (np.abs, ALL),
    basic.sign: (np.sign, INTEGERS + FLOATS),
    basic.true_div: (np.true_divide, FLOATS),
    basic.int_div: (np.floor_divide, INTEGERS + FLOATS),
    basic.mod: (np.remainder, INTEGERS + FLOATS),
    basic.reciprocal: (np.reciprocal, FLOATS),
    basic.sqrt: (np.sqrt, FLOATS),
    basic.maximum: (np.maximum, ALL),
    basic.minimum: (np.minimum, ALL),
    basic.floor: (np.floor, FLOATS),
    basic.ceil: (np.ceil, FLOATS),
    basic.trunc: (np.trunc, FLOATS),
    basic.round_half_to_even: (np.rint, FLOATS),
    basic.round_half_away_from_zero: (lambda x: np.sign(x) * away(np.abs(x)), FLOATS),
    basic.clip: (lambda x, low, high: np.minimum(np.maximum(x, low), high), INTEGERS + FLOATS),
    basic.switch: (lambda c, x, y: np.where(c != 0, x, y), ALL),
    basic.second: (lambda x, y: y, ALL),
    basic.identity: (lambda x: x, ALL),
    basic.lt: (np.less, ALL),
    basic.gt: (np.greater, ALL),
    basic.le: (np.less_equal, ALL),
    basic.ge: (np.greater_equal, ALL),
    basic.eq: (np.equal, ALL),
    basic.neq: (np.not_equal, ALL),
    basic.isnan: (np.isnan, ALL),
    basic.isinf: (np.isinf, ALL),
    basic.and_: (np.bitwise_and, ["bool", *INTEGERS]),
    basic.or_: (np.bitwise_or, ["bool", *INTEGERS]),
    basic.xor: (np.bitwise_xor, ["bool", *INTEGERS]),
    basic.invert: (np.invert, ["bool", *INTEGERS]),
}

ROUNDED = {
    basic.exp: np.exp,
    basic.exp2: np.exp2,
    basic.expm1: np.expm1,
    basic.log: np.log,
    basic.log2: np.log2,
    basic.log10: np.log10,
    basic.log1p: np.log1p,
    basic.sin: np.sin,
    basic.cos: np.cos,
    basic.tan: np.tan,
    basic.arcsin: np.arcsin,
    basic.arccos: np.arccos,
    basic.arctan: np.arctan,
    basic.arctan2: np.arctan2,
    basic.sinh: np.sinh,
    basic.cosh: np.cosh,
    basic.tanh: np.tanh,
    basic.arcsinh: np.arcsinh,
    basic.arctanh: np.arctanh,
    math.erf: scipy.special.erf,
    math.erfc: scipy.special.erfc,
    math.sigmoid: scipy.special.expit,
    math.softplus: lambda x: np.logaddexp(x, x.dtype.type(0)),
    math.log1mexp: lambda x: np.where(x < -0.6931471805599453, np.log1p(-np.exp(x)), np.log(-np.expm1(x))),
}


def away(x):
    """Round half up; 0.49999997 + 0.5 would be 1."""
    whole = np.floor(x)
    return np.where(np.isfinite(x) & (x - whole >= 0.5), whole + 1, whole)


def awkward(dtype):
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        small = [n for n in (-7, -3, -2, -1, 0, 1, 2, 3, 7, 100) if n >= limits.min]
        return np.array([limits.min, limits.min + 1, *small, limits.max - 1, limits.max], dtype)
    limits = np.finfo(dtype)
    positive = [
        0,
        limits.smallest_subnormal,
        limits.tiny,
        0.1,
        0.49999997,
        0.5,
        1,
        1.5,
        2,
        2.5,
        3.3,
        7,
        20,
        89,
        800,
    ]
    positive += [limits.max, np.inf]
    return np.array([*positive, *np.negative(positive), np.nan], dtype)


def arguments(dtype, count):
    """Return all combinations of ``count`` awkward numbers, in whole vector registers."""
    values = awkward(dtype)
    if count == 3:
        values = values[:: max(1, len(values) // 12)]
    grids = np.meshgrid(*[values] * count, indexing="ij")
    # NumPy itself converts numbers that do not fit another way in the odd elements at the end.
    length = -(-grids[0].size // 64) * 64
    return [np.resize(grid, length) for grid in grids]


def arity(scalar_op):
    return 2 if scalar_op in (basic.add, basic.mul) else scalar_op.nin


CASES = [(op, dtype) for op, (_, dtypes) in EXACT.items() for dtype in dtypes]
CASES += [(op, dtype) for op in ROUNDED for dtype in FLOATS]
MIXED = [
    ("int8", "float32"),
    ("int64", "float32"),
    ("uint8", "int16"),
    ("bool", "float64"),
    ("uint32", "int64"),
]
MIXED_OPS = [basic.add, basic.mul, basic.maximum, basic.lt, basic.eq, basic.sub]
