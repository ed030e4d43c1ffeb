"""Pieces of small graphs: element by element, reductions, moves, joins, parts, products, barriers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.tensor.elemwise import Elemwise

from support.cases.choices import Unfit
from support.regions.arrays import FLOATS, INTEGERS
from support.regions.exactness import EXACT
from support.regions.graphs import piece

DTYPES = [
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float64",
    "float32",
    "bool",
]
ELEMENTARY = [
    *(pt.exp, pt.exp2, pt.expm1, pt.log, pt.log2, pt.log10, pt.log1p, pt.erf, pt.erfc, pt.sin, pt.cos),
    *(pt.tan, pt.arcsin, pt.arccos, pt.arctan, pt.sinh, pt.cosh, pt.tanh, pt.arcsinh, pt.arctanh),
    *(pt.sigmoid, pt.softplus, pt.gammaln, pt.psi, pt.gamma, pt.erfcx, pt.erfinv, pt.i0),
]
UNARY = [
    *(pt.neg, abs, pt.sign, pt.sqr, pt.sqrt, pt.floor, pt.ceil, pt.trunc, pt.reciprocal),
    *(lambda x: pt.round(x, mode="half_to_even"), lambda x: pt.round(x, mode="half_away_from_zero")),
    *(pt.isnan, pt.isinf, lambda x: x * 0.1, lambda x: 1 - x, lambda x: x / 3, lambda x: x + 1),
    *(lambda x: pt.clip(x, -1, 2), pt.invert, lambda x: x // 3, lambda x: x % 4, lambda x: x % -3),
    *(lambda x: pt.second(x, 2), lambda x: pt.ones_like(x), lambda x: x.astype("float32") * 0.1),
]
BINARY = [
    *(pt.add, pt.sub, pt.mul, pt.true_div, pt.maximum, pt.minimum, pt.int_div, pt.mod),
    *(pt.add, pt.sub, pt.mul, pt.and_, pt.or_, pt.xor, lambda x, y: x * y + x, lambda x, y: x - y * y),
]
COMPARISONS = [pt.gt, pt.lt, pt.ge, pt.le, pt.eq, pt.neq]


@piece(8)
def unary(g):
    return g.one_of(UNARY)(g.exact() if g.chance(0.9) else g.any())


@piece(5)
def elementary(g):
    return g.one_of(ELEMENTARY)(g._of(lambda v: v.level <= EXACT and v.variable.type.dtype != "bool"))


@piece(1)
def angle(g):
    x = g.real()
    return pt.arctan2(x, g.near(x, lambda v: v.variable.type.dtype.startswith("float")))


@piece(14)
def binary(g):
    x = g.any()
    y = g.near(x)
    return g.one_of(BINARY)(*([x, y] if g.chance(0.5) else [y, x]))


@piece(4)
def compared(g):
    x = g.exact()
    return g.one_of(COMPARISONS)(x, g.near(x, lambda v: v.level <= EXACT))


FLOAT64 = [ps.float64(name) for name in "abc"]


@piece(1)
def steps_of_elements(g):
    x, (a, b, c) = g.exact(), FLOAT64
    y, z, n = (g.near(x, lambda v: v.level <= EXACT) for _ in range(3))
    update, until = g.one_of(
        [
            ([a + b, b * c], a * a > 3),
            ([b - a / c, ps.switch(a > b, a, c)], ps.isnan(a + b)),
            ([ps.sqrt(abs(b)), a * 0.5], ps.and_(a < 1, b < c)),
        ]
    )
    loop = ps.ScalarLoop(init=[a, b], update=update, constant=[c], until=until)
    count = pt.switch(pt.isfinite(n), n, 5).astype("int64") % 12 - 2 if g.chance(0.7) else 9
    return Elemwise(loop)(count, *(one.astype("float64") for one in (x, y, z)))


@piece(5)
def chosen(g):
    x = g.any()
    condition = g.near(x, lambda v: v.level <= EXACT)
    return pt.switch(condition, *([x, g.near(x)] if g.chance(0.5) else [g.near(x), x]))


@piece(5)
def converted(g):
    x, dtype = g.exact(), g.one_of(DTYPES)
    if x.type.dtype in FLOATS and dtype in INTEGERS:
        # What an integer is not made for becomes one or another, in NumPy as in C.
        ends = np.iinfo(dtype)
        x = pt.clip(
            pt.switch(pt.isnan(x), 1, x),
            -99 if dtype[0] == "u" else max(ends.min, -10000),
            min(ends.max, 100_000),
        ).astype(x.dtype)
    return x.astype(dtype)


# --- reductions -----------------------------------------------------------------------------------

REDUCTIONS = [pt.sum, pt.sum, pt.sum, pt.mean, pt.max, pt.max, pt.min, pt.prod, pt.all, pt.any]


@piece(10)
def reduced(g):
    x = g.any(1, 2, 3, 4)
    axes = g.one_of([None, g.number(0, x.ndim - 1), [k for k in range(x.ndim) if g.chance(0.5)] or 0])
    reduce = g.one_of(REDUCTIONS)
    if reduce in (pt.sum, pt.mean, pt.prod, pt.max, pt.min):
        if x.type.dtype == "bool" and reduce in (pt.max, pt.min):
            raise Unfit
        return reduce(x, axis=axes, keepdims=g.chance(0.2))
    return reduce(x > 0 if g.value(x).level <= EXACT else pt.isnan(x), axis=axes)


# --- moves ----------------------------------------------------------------------------------------


@piece(8)
def moved(g):
    x = g.any(1, 2, 3, 4)
    n = x.ndim
    order = list(g.rng.permutation(n))
    makes = [
        lambda: x.T,
        lambda: x.dimshuffle(*order),
        lambda: x.dimshuffle("x", *order) if n < 4 else x,
        lambda: x.dimshuffle(*order, "x") if n < 4 else x,
        lambda: x.reshape((-1,)),
        lambda: x.T.reshape((-1,)),
        lambda: x.reshape((x.shape[0], -1)),
        lambda: x.flatten(),
        lambda: x.T.reshape(x.shape),
        lambda: x.ravel()[: x.size // 2 * 2].reshape((2, -1)),
        lambda: pt.shape_padleft(x) if n < 4 else x,
        lambda: x.reshape((1, -1)),
        lambda: pt.specify_shape(x, g.shape(x)),
        lambda: pt.moveaxis(x, 0, -1).copy(),
    ]
    if 1 in x.type.shape:
        makes += [lambda: x.squeeze(), lambda: x[..., 0], lambda: x.reshape((-1,))[0]]
    if n == 2:
        makes += [lambda: pt.diagonal(x), lambda: pt.diag(x.ravel()[:3])]
    if n > 1:
        makes += [lambda: x.reshape((x.shape[1], x.shape[0], *[x.shape[k] for k in range(2, n)]))]
    return g.one_of(makes)()


STARTS = [None, None, 0, 1, 2, -1, -2, 4, 7, -9]
STEPS = [None, None, None, 1, 2, 3, -1, -1, -2]


def random_slice(g):
    return slice(g.one_of(STARTS), g.one_of(STARTS), g.one_of(STEPS))


def variable_slice(g):
    start = g.whole(0).astype("int64") % 7 - 3
    return g.one_of([slice(start, None), slice(None, start), slice(None, start, -1), slice(start, None, 2)])


def positions(g, x):
    """Return the arguments of a basic index: integers and slices."""
    made: list[Any] = []
    for k in range(g.number(1, x.ndim)):
        length = g.shape(x)[k]
        makes = [
            lambda: random_slice(g),
            lambda: random_slice(g),
            lambda: slice(None),
            lambda length=length: g.number(-length, max(length - 1, -length)),
            lambda length=length: g.whole(0).astype("int64") % max(length, 1),
            lambda: variable_slice(g),
        ]
        made.append(g.one_of(makes)())
    return tuple(made)


@piece(10)
def sliced(g):
    x = g.any(1, 2, 3, 4)
    return x[positions(g, x)]


@piece(3)
def shapes(g):
    x = g.any(1, 2, 3)
    makes = [
        lambda: x.shape,
        lambda: x.shape[0] * 2,
        lambda: x.shape[::-1] + 1,
        lambda: x.size,
        lambda: pt.arange(x.shape[0]),
        lambda: pt.arange(x.shape[0], 0, -1),
        lambda: pt.arange(2, x.shape[-1] * 2, 3),
        lambda: pt.concatenate([x.shape, [7]]),
        lambda: x.shape.astype("float64") / 2,
        lambda: pt.stack([x.shape[0], x.shape[-1]]).astype("int32"),
        lambda: pt.max(x.shape),
    ]
    return g.one_of(makes)()


@piece(2)
def running(g):
    x = g.any(1, 2, 3)
    axis = g.number(0, x.ndim - 1)
    makes = [lambda: pt.cumsum(x, axis=axis), lambda: pt.cumsum(x[::-1]), lambda: pt.cumprod(x, axis=axis)]
    return g.one_of(makes)()


@piece(6)
def joined(g):
    x = g.any(1, 2, 3)
    y = g.same(x)
    axis = g.number(0, x.ndim - 1)
    makes = [
        lambda: pt.join(axis, x, y),
        lambda: pt.join(axis, y, x, y),
        lambda: pt.join(0, x, g.any(x.ndim)),
        lambda: pt.stack([x, y], axis=axis) if x.ndim < 4 else pt.join(0, x, y),
        lambda: pt.join(axis, x, x[::-1], y),
        lambda: pt.join(0, x.ravel(), y.ravel()[::2]),
        lambda: pt.join(axis, x * 2, y, y[::-1]),
        lambda: pt.join(0, x.T, y.T),
        lambda: pt.split(x, [1, g.shape(x)[axis] - 1], n_splits=2, axis=axis)[g.number(0, 1)],
        lambda: pt.tile(x, 2),
        lambda: pt.repeat(x, 2, axis=axis),
    ]
    return g.one_of(makes)()


@piece(3)
def stacked(g):
    x = g.any(0)
    return g.one_of([lambda: pt.stack([x, g.same(x), x]), lambda: pt.stack([x, x]).sum()])()


@piece(3)
def new(g):
    x = g.any(0, 1, 2)
    makes = [
        lambda: pt.alloc(x, 2, *g.shape(x)),
        lambda: pt.alloc(x, 3, *x.shape),
        lambda: pt.zeros_like(x),
        lambda: pt.ones((2, 3), dtype=x.dtype) * 2,
        lambda: pt.eye(3, dtype=x.dtype),
        lambda: pt.full((3,), 2).astype(x.dtype),
        lambda: pt.alloc(x, g.whole(0).astype("int64") % 4, *x.shape),
    ]
    return g.one_of(makes)()


# --- rows at positions ----------------------------------------------------------------------------


@piece(7)
def taken(g):
    x = g.any(1, 2, 3)
    rows = g.rows(g.shape(x)[0])
    makes = [
        lambda: x[rows],
        lambda: x[rows],
        lambda: pt.take(x, rows, axis=0),
        lambda: x[rows][rows % 2],
        lambda: x[rows][::-1],
        lambda: x[::-1][rows],
        lambda: (x + 1 if x.dtype != "bool" else x)[rows],
    ]
    if x.ndim > 1:
        columns = g.rows(g.shape(x)[1])
        makes += [
            lambda: x[:, columns],
            lambda: x[rows, columns],
            lambda: x.T[columns],
            lambda: x[pt.arange(g.shape(x)[1]) % g.shape(x)[0], pt.arange(g.shape(x)[1])],
            lambda: x[rows, 0],
            lambda: x[rows, :1],
            lambda: x[rows[:, None], columns[None, :]],
        ]
    return g.one_of(makes)()


@piece(2)
def masked(g):
    x = g.any(1, 2)
    try:
        mask = g._of(lambda v: v.variable.type.dtype == "bool" and v.array.shape == g.shape(x)[:1])
    except Unfit:
        mask = g.one_of([pt.gt, pt.lt])(g.same(x).sum(axis=tuple(range(1, x.ndim))), 0)
        if g.value(x).level > EXACT or x.ndim > 1:
            raise
    return g.one_of([lambda: x[mask], lambda: x[mask.nonzero()[0]], lambda: pt.set_subtensor(x[mask], 1)])()


def other(g, x, part):
    """Return a value that may be written to a part of an array."""
    makes = [
        lambda: g.one_of([0, 1, 3]),
        lambda: g.any(0).astype(x.dtype),
        lambda: part + 1 if x.dtype != "bool" else part,
        lambda: part[::-1] if part.ndim else part,
        lambda: part,
        lambda: g.any(*range(part.ndim + 1)),
    ]
    return g.one_of(makes)()


def changed(g, x):
    return g.one_of([x, x + 1 if x.dtype != "bool" else x, x.copy()])


@piece(9)
def written(g):
    x = g.any(1, 2, 3)
    at = positions(g, x)
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor])
    target = changed(g, x)
    once = write(target[at], other(g, x, x[at]))
    if g.chance(0.3):
        again = positions(g, x)
        return g.one_of(
            [
                lambda: write(once[again], other(g, x, once[again])),
                lambda: [once, pt.inc_subtensor(once[0], once[-1])],
                lambda: [once, once[::-1]],
            ]
        )()
    return once


@piece(4)
def written_by_itself(g):
    x = changed(g, g.any(1, 2))
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor])
    makes = [
        lambda: write(x[1:], x[:-1]),
        lambda: write(x[:-1], x[1:]),
        lambda: write(x[::-1], x),
        lambda: write(x[::2], x[: (x.shape[0] + 1) // 2]),
        lambda: write(write(x[1:], x[:-1])[:-1], x[1:]),
        lambda: write(x[:, 1:], x[:, :-1]),
        lambda: write(x[0], x[-1]),
        lambda: write(x.T[::-1], x.T),
        lambda: write(x[:, ::-1][1:], x[:-1]),
        lambda: write(x[x.shape[0] // 2 :], x[: x.shape[0] - x.shape[0] // 2]),
    ]
    return g.one_of(makes)()


@piece(7)
def scattered(g):
    x = g.any(1, 2, 3)
    rows = g.rows(g.shape(x)[0])
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor, pt.inc_subtensor])
    target = changed(g, x)
    makes = [
        lambda: write(target[rows], other(g, x, x[rows])),
        lambda: write(target[rows], x[rows]),
        lambda: write(target[rows], target[rows]),
        lambda: write(pt.zeros_like(x)[rows], x[rows[::-1]]),
        lambda: write(write(target[rows], 1)[rows], x[rows]),
        lambda: write(target[::-1][rows], x[rows]),
    ]
    if x.ndim > 1:
        columns = g.rows(g.shape(x)[1])
        makes += [
            lambda: write(target[rows, columns], other(g, x, x[rows, columns])),
            lambda: write(target[:, columns], 1),
            lambda: write(target[rows], x[0]),
        ]
    return g.one_of(makes)()


# --- products -------------------------------------------------------------------------------------


@piece(5)
def product(g):
    x = g.real(1, 2)
    y = g._of(
        lambda v: (
            v.variable.type.dtype in (x.type.dtype, "float64")
            and v.variable.type.ndim in (1, 2)
            and v.array.shape[0] == g.shape(x)[-1]
        )
    )
    return g.one_of([lambda: pt.dot(x, y), lambda: pt.dot(y.T, x.T)])()


@piece(2)
def outer(g):
    x, y = g.any(1), g.any(1)
    return g.one_of([lambda: pt.outer(x, y), lambda: x[:, None] + y[None, :], lambda: x[:, None] >= y])()


@piece(1)
def small_algebra(g):
    x = g.real(2)
    if not g.static or 5 in g.shape(x):
        raise Unfit
    x = pt.specify_shape(x, g.shape(x))
    square = pt.dot(x.T, x) + 4 * pt.eye(g.shape(x)[1], dtype=x.dtype)
    makes: list[Callable[[], Any]] = [
        lambda: pt.linalg.cholesky(square),
        lambda: pt.linalg.solve_triangular(pt.linalg.cholesky(square), x.T, lower=True),
        lambda: pt.linalg.solve(square, x.T),
        lambda: pt.linalg.inv(square),
        lambda: pt.linalg.slogdet(square)[g.number(0, 1)] + pt.linalg.det(square) * 0.5,
        lambda: pt.linalg.solve_triangular(square, x.T, lower=g.chance(0.5), unit_diagonal=g.chance(0.5)),
        lambda: pt.dot(x.T, x),
    ]
    return g.one_of(makes)()


# --- others ---------------------------------------------------------------------------------------


@piece(3)
def without_text(g):
    """An Op without C text, at which regions end."""
    x = g.any(1, 2)
    return g.one_of([lambda: pt.cumsum(x), lambda: pt.sort(x, 0), lambda: pt.cumsum(x, axis=0) * 2])()


@piece(1)
def softmax(g):
    x = g.real(1, 2)
    axis = g.number(0, x.ndim - 1)
    return g.one_of([pt.special.softmax, pt.special.log_softmax, pt.logsumexp])(x, axis=axis)


@piece(5)
def gradient(g):
    value = g._of(lambda v: v.variable.owner is not None and v.variable.type.dtype.startswith("float"))
    leaves = [one for one in (*g.inputs, *g.shared) if one.type.dtype.startswith("float")]
    if not leaves:
        raise Unfit
    cost = g.one_of([lambda: value.sum(), lambda: (value * value).sum()])()
    return pytensor.grad(cost, g.one_of(leaves))
