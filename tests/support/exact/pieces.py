"""Pieces of random graphs: each makes a new value, or several, of values that a graph has.

    graph.real(2), graph.near(x), graph.number(...) -> piece -> variables

A piece raises `Unfit` where the graph has nothing for it. What it makes may fail to be computed, or be no
number; the graph leaves it out then.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph

import synk.ops
from synk.compile.compat import optional_class

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")

PIECES: dict[Callable[..., Any], int] = {}


class Unfit(Exception):
    """The graph has no values that a piece could be made of."""


def piece(weight: int) -> Callable[..., Any]:
    """Register a piece; of two, one with twice the weight is tried twice as often."""

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        PIECES[make] = weight
        return make

    return register


# --- element by element ---------------------------------------------------------------------------

UNARY = [
    pt.tanh,
    pt.sigmoid,
    pt.softplus,
    pt.erf,
    pt.sqr,
    pt.neg,
    abs,
    pt.sign,
    pt.floor,
    pt.ceil,
    pt.cos,
    pt.round,
    pt.expm1,
    pt.gammaln,
    lambda x: pt.exp(-abs(x)),
    lambda x: pt.sqrt(abs(x) + 1),
    lambda x: pt.log1p(abs(x)),
    lambda x: pt.log(x**2 + 0.5),
    lambda x: 1 / (1 + x**2),
    lambda x: x**3,
    lambda x: pt.switch(x > 0, x, 0.1 * x),
    lambda x: pt.clip(x, -0.5, 0.5),
    lambda x: 2 * x - 1,
    lambda x: x / 3,
    lambda x: 1 - x,
]
BINARY = [
    pt.add,
    pt.sub,
    pt.mul,
    pt.maximum,
    pt.minimum,
    pt.arctan2,
    lambda x, y: x / (y**2 + 1),
    lambda x, y: (abs(x) + 0.5) ** pt.tanh(y),
    lambda x, y: x - 0.5 * y,
    lambda x, y: pt.logaddexp(x, y),
    lambda x, y: pt.mod(x, abs(y) + 1),
    lambda x, y: x // (abs(y) + 1),
]
COMPARISONS = [pt.gt, pt.lt, pt.ge, pt.le, pt.eq, pt.neq]
DTYPES = ["int64", "int32", "int8", "float64", "float32", "bool"]


@piece(8)
def unary(g):
    return g.one_of(UNARY)(g.real())


@piece(10)
def binary(g):
    x = g.real()
    return g.one_of(BINARY)(*g.shuffled(x, g.near(x)))


@piece(2)
def of_integers(g):
    x = g.whole()
    y = g.near(x, "int")
    makes = [
        lambda x, y: x + y,
        lambda x, y: x * y,
        lambda x, y: x - y,
        lambda x, y: x // (abs(y) + 1),
        lambda x, y: x % (abs(y) + 1),
        lambda x, y: x / (abs(y) + 1),
        lambda x, y: x & y,
        lambda x, y: x | y,
        pt.maximum,
    ]
    return g.one_of(makes)(x, y)


@piece(3)
def compared(g):
    x = g.real()
    return g.one_of(COMPARISONS)(x, g.near(x))


@piece(2)
def of_truths(g):
    x = g.truth()
    y = g.near(x, "bool")
    return g.one_of([lambda x, y: x & y, lambda x, y: x | y, lambda x, y: ~x, pt.xor, pt.eq])(x, y)


@piece(4)
def chosen(g):
    x = g.real()
    return pt.where(g.near(x, "bool"), *g.shuffled(x, g.near(x)))


@piece(2)
def clipped(g):
    x = g.real()
    return pt.clip(x, -abs(g.near(x)), abs(g.near(x)) + 1)


@piece(3)
def converted(g):
    return g.any().astype(g.one_of(DTYPES))


# --- reductions -----------------------------------------------------------------------------------

REDUCTIONS = [pt.sum, pt.sum, pt.mean, pt.mean, pt.max, pt.min, pt.var, pt.std, pt.prod, pt.logsumexp]


@piece(12)
def reduced(g):
    x = g.real(1, 2, 3)
    return g.one_of(REDUCTIONS)(x, axis=g.axes(x), keepdims=g.chance(0.2))


@piece(3)
def reduced_integers(g):
    x = g.one_of([g.whole, g.truth])(1, 2, 3)
    return g.one_of([pt.sum, pt.mean, pt.max, pt.min, pt.prod, pt.any, pt.all])(x, axis=g.axes(x))


@piece(2)
def argument_of_extreme(g):
    x = g.real(1, 2, 3)
    return g.one_of([pt.argmax, pt.argmin])(x, axis=g.one_of([None, *range(x.ndim)]))


@piece(2)
def normed(g):
    x = g.real(1, 2)
    return pt.sqrt((x**2).sum(axis=g.axes(x), keepdims=True) + 1)


@piece(2)
def counted(g):
    x = g.real(1, 2, 3)
    return (x > 0.1).sum(axis=g.axes(x)) / g.one_of([x.shape[0], x.size, 1 + x.shape[0]])


@piece(4)
def standardised(g):
    x = g.real(1, 2)
    axis = g.axis(x)
    makes = [
        lambda: x - x.mean(axis, keepdims=True),
        lambda: (x - x.mean(axis, keepdims=True)) / (x.std(axis, keepdims=True) + 1),
        lambda: x / (abs(x).sum(axis, keepdims=True) + 1),
        lambda: (
            (x - x.min(axis, keepdims=True)) / (1 + x.max(axis, keepdims=True) - x.min(axis, keepdims=True))
        ),
    ]
    return g.one_of(makes)()


@piece(2)
def weighted(g):
    x = g.real(1, 2)
    weights = abs(g.near(x)) + 0.1
    axis = g.axes(x)
    return (x * weights).sum(axis) / (pt.zeros_like(x) + weights).sum(axis)


@piece(3)
def softmaxes(g):
    x = g.real(1, 2, 3)
    return g.one_of([pt.special.softmax, pt.special.log_softmax])(x, axis=g.one_of([None, *range(x.ndim)]))


# --- shapes ---------------------------------------------------------------------------------------


@piece(4)
def transposed(g):
    x = g.any(2, 3)
    return x.transpose(*g.shuffled(*range(x.ndim)))


@piece(3)
def reshaped(g):
    x = g.any(1, 2, 3)
    makes = [
        lambda: x.flatten(),
        lambda: x.reshape((x.shape[0], -1)),
        lambda: x.reshape((-1, 1)),
        lambda: x.reshape((-1,)),
        lambda: x.reshape((1, *x.shape)),
        lambda: x.reshape((-1, x.shape[-1])),
        lambda: x.reshape((x.shape[-1], -1)),
        lambda: pt.flatten(x, min(2, x.ndim)),
        lambda: x.T.flatten(),
    ]
    return g.one_of(makes)()


@piece(3)
def widened(g):
    x = g.any(1, 2)
    return g.one_of(
        [lambda x: x[:, None], lambda x: x[None], lambda x: pt.expand_dims(x, -1), lambda x: x[..., None]]
    )(x)


@piece(3)
def joined(g):
    x = g.real(1, 2)
    y = g.same(x)
    axis = g.axis(x)
    return g.one_of(
        [
            lambda: pt.concatenate([x, y, x], axis),
            lambda: pt.stack([x, y], axis),
            lambda: pt.concatenate([x, y], -1),
        ]
    )()


@piece(1)
def stacked_numbers(g):
    return pt.stack([g.real(0), g.real(0), g.real(0)])


@piece(2)
def repeated(g):
    x = g.any(1, 2)
    makes = [
        lambda: pt.repeat(x, 2, axis=g.axis(x)),
        lambda: pt.tile(x, 2),
        lambda: pt.tile(x, (2,) + (1,) * (x.ndim - 1)),
        lambda: pt.repeat(x, 3),
    ]
    return g.one_of(makes)()


@piece(1)
def split_apart(g):
    x = g.any(2, 3)
    axis = g.number(1, x.ndim - 1)
    if g.length(x, axis) is None or g.length(x, axis) < 2:
        raise Unfit
    return pt.split(x, [1, g.length(x, axis) - 1], 2, axis=axis)


@piece(2)
def lengths(g):
    x = g.any(1, 2, 3)
    makes = [
        lambda: x.shape[0],
        lambda: x.shape,
        lambda: x.size,
        lambda: x.shape[0] * 2 + 1,
        lambda: 1.0 / (x.shape[0] + 1),
        lambda: pt.arange(x.shape[0]),
        lambda: pt.arange(1, x.shape[0] + 1),
        lambda: pt.arange(x.shape[0]) * 1.0 / x.shape[0],
        lambda: x.shape[0] // 2,
        lambda: pt.sqrt(x.size * 1.0),
        lambda: pt.prod(x.shape),
    ]
    return g.one_of(makes)()


@piece(3)
def filled(g):
    x = g.real(1, 2, 3)
    v = g.real(0)
    makes = [
        lambda: pt.zeros_like(x),
        lambda: pt.ones_like(x) * v,
        lambda: pt.full_like(x, v),
        lambda: pt.alloc(v, x.shape[0], 2),
        lambda: pt.alloc(v, 2, x.shape[0]),
        lambda: pt.ones((x.shape[0],)),
        lambda: pt.zeros((x.shape[0], x.shape[0])),
        lambda: pt.eye(x.shape[0]),
        lambda: pt.alloc(x, 2, *x.shape),
        lambda: pt.broadcast_to(v, x.shape),
        lambda: pt.second(x, v),
    ]
    return g.one_of(makes)()


@piece(1)
def triangles(g):
    x = g.real(2)
    return g.one_of([pt.tril, pt.triu])(x)


@piece(2)
def diagonals(g):
    x = g.real(2)
    square = x.T @ x
    return g.one_of(
        [
            lambda: pt.diag(square),
            lambda: pt.trace(square),
            lambda: pt.diag(g.real(1)),
            lambda: pt.diagonal(x),
        ]
    )()


# --- indices --------------------------------------------------------------------------------------


@piece(6)
def sliced(g):
    x = g.any(1, 2, 3)
    makes = [
        lambda: x[0],
        lambda: x[-1],
        lambda: x[:3],
        lambda: x[1:],
        lambda: x[:-1],
        lambda: x[::2],
        lambda: x[::-1],
        lambda: x[-3:],
        lambda: x[: x.shape[0] // 2],
        lambda: x[1],
    ]
    columns = [
        lambda: x[:, 0],
        lambda: x[:, -1],
        lambda: x[:, 1:],
        lambda: x[:, ::-1],
        lambda: x[..., 0],
        lambda: x[:, :2],
        lambda: x[:, ::2],
        lambda: x[..., None, 0],
        lambda: x[:, g.whole_number(2)],
    ]
    return g.one_of(columns if x.ndim > 1 and g.chance(0.7) else makes)()


@piece(3)
def masked(g):
    x = g.any(1, 2)
    mask = g.fitting(lambda v: v.dtype == "bool" and g.dims(v) == g.dims(x)[:1])
    return g.one_of([lambda: x[mask], lambda: x[mask.nonzero()], lambda: x[pt.nonzero(mask)[0]]])()


@piece(4)
def of_tables(g):
    labels = g.labels()
    table = g.fitting(lambda v: v.ndim >= 1 and g.length(v, 0) == 5)
    makes = [lambda: table[labels], lambda: pt.take(table, labels, axis=0)]
    if table.ndim > 1:
        makes += [
            lambda: table[labels, 0],
            lambda: table.T[:, labels],
            lambda: table[labels, labels % table.shape[1]],
        ]
    return g.one_of(makes)()


@piece(4)
def by_row(g):
    x = g.any(2)
    labels = g.fitting(lambda v: v.dtype == "int64" and g.dims(v) == g.dims(x)[:1])
    column = abs(labels) % x.shape[1]
    makes = [
        lambda: x[pt.arange(x.shape[0]), column],
        lambda: x[pt.arange(labels.shape[0]), column],
        lambda: pt.take_along_axis(x, column[:, None], axis=1),
        lambda: pt.eq(column[:, None], pt.arange(x.shape[1])[None]),
        lambda: x[:, column % 2],
        lambda: pt.set_subtensor(x[pt.arange(x.shape[0]), column], 0),
        lambda: pt.inc_subtensor(x[pt.arange(x.shape[0]), column], 1),
    ]
    return g.one_of(makes)()


@piece(2)
def picked(g):
    x = g.any(1, 2)
    chosen = g.one_of([[0, 1], [1, 0, 0], [-1, 0]])
    return g.one_of([lambda: x[chosen], lambda: x.T[chosen].T, lambda: x[..., chosen]])()


@piece(4)
def written(g):
    x = g.real(1, 2, 3)
    v = g.real(0)
    inner = g.same(x)
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor])
    makes = [
        lambda: write(x[0], v),
        lambda: write(x[:2], v),
        lambda: write(x[-1], inner[0]),
        lambda: write(x[1:], inner[1:]),
    ]
    if x.ndim > 1:
        makes += [
            lambda: write(x[:, 0], v),
            lambda: write(x[:, 0], inner[:, 0]),
            lambda: write(x[:, 1:], inner[:, 1:]),
            lambda: write(pt.zeros_like(x)[:, 0], inner[:, 0]),
            lambda: write(x[:, [0, 1]], inner[:, [1, 0]]),
        ]
    return g.one_of(makes)()


@piece(2)
def written_where(g):
    x = g.real(1, 2)
    mask = g.fitting(lambda v: v.dtype == "bool" and g.dims(v) == g.dims(x)[:1])
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor])
    return g.one_of([lambda: write(x[mask], 0.5), lambda: write(x[mask], g.same(x)[mask])])()


@piece(3)
def scattered_to(g):
    labels = g.labels(1)
    x = g.fitting(lambda v: v.dtype == "float64" and v.ndim in (1, 2) and g.dims(v)[:1] == g.dims(labels)[:1])
    table = pt.zeros((5, *[x.shape[k] for k in range(1, x.ndim)]))
    makes = [
        lambda: pt.inc_subtensor(table[labels], x),
        lambda: pt.inc_subtensor(table[labels], 1),
        lambda: pt.set_subtensor(table[labels], x),
        lambda: pt.bincount(labels, minlength=5),
        lambda: pt.bincount(labels, weights=x[..., 0] if x.ndim > 1 else x, minlength=5),
    ]
    return g.one_of(makes)()


# --- products -------------------------------------------------------------------------------------


@piece(8)
def product(g):
    x = g.real(1, 2, 3)
    last = g.dims(x)[-1]
    y = g.fitting(lambda v: v.dtype == "float64" and v.ndim and g.dims(v)[max(v.ndim - 2, 0)] == last)
    return x @ y


@piece(4)
def contracted(g):
    x = g.real(1, 2)
    y = g.fitting(lambda v: v.dtype == "float64" and 0 < v.ndim < 3 and g.dims(v)[0] == g.dims(x)[0])
    return g.one_of([lambda: x.T @ y, lambda: pt.tensordot(x, y, axes=[[0], [0]]), lambda: y.T @ x])()


@piece(2)
def products_of_many(g):
    x = g.real(3)
    makes = [
        lambda: pt.matmul(x, x.transpose(0, 2, 1)),
        lambda: pt.matmul(x.transpose(0, 2, 1), x),
        lambda: pt.matmul(x.transpose(2, 1, 0), x.transpose(2, 0, 1)),
        lambda: pt.tensordot(x, x, axes=[[0, 2], [0, 2]]),
        lambda: pt.tensordot(x, g.real(1), axes=[[2], [0]]),
        lambda: (x * x).sum(-1),
        lambda: pt.einsum("nij,nik->njk", x, x),
        lambda: pt.einsum("nij,nij->n", x, x),
    ]
    return g.one_of(makes)()


@piece(2)
def outer(g):
    x = g.real(1)
    y = g.real(1)
    return g.one_of(
        [lambda: pt.outer(x, y), lambda: x[:, None] - y[None, :], lambda: (x[:, None] * y).sum(0)]
    )()


@piece(1)
def similarities(g):
    x = g.real(2)
    return g.one_of([lambda: x @ x.T, lambda: ((x[:, None] - x[None]) ** 2).sum(-1)])()


@piece(3)
def linear_algebra(g):
    x = g.real(2)
    if x.shape[1] is None or (g.length(x, 1) or 9) > 6:
        raise Unfit
    square = x.T @ x / 10 + pt.eye(x.shape[1])
    makes = [
        lambda: pt.linalg.cholesky(square),
        lambda: pt.linalg.solve(square, x.T @ x[:, 0]),
        lambda: pt.linalg.solve(square, x.T).T,
        lambda: pt.linalg.inv(square),
        lambda: pt.linalg.det(square),
        lambda: pt.linalg.slogdet(square)[1],
        lambda: pt.linalg.solve_triangular(pt.linalg.cholesky(square), x.T, lower=True),
        lambda: pt.linalg.norm(x),
        lambda: (
            pt.linalg.eigvalsh(square, None) if hasattr(pt.linalg, "eigvalsh") else pt.linalg.eigh(square)[0]
        ),
    ]
    return g.one_of(makes)()


# --- along an axis --------------------------------------------------------------------------------


@piece(2)
def accumulated(g):
    x = g.real(1, 2, 3)
    return g.one_of([pt.cumsum, pt.cumprod])(pt.tanh(x), axis=g.one_of([None, *range(x.ndim)]))


@piece(2)
def in_order(g):
    x = g.real(1, 2)
    axis = g.axis(x)
    return g.one_of(
        [lambda: pt.sort(x, axis), lambda: pt.argsort(x, axis), lambda: pt.sort(x, axis)[..., -1]]
    )()


@piece(1)
def differences(g):
    x = g.real(1, 2)
    return pt.diff(x, axis=g.axis(x))


@piece(1)
def searched(g):
    x = g.real(1)
    return pt.searchsorted(np.linspace(-1, 1, 4), x)


@piece(1)
def found(g):
    return pt.nonzero(g.truth(1))[0]


# --- graphs within graphs -------------------------------------------------------------------------


@piece(1)
def loops(g):
    x = g.real(2)
    other = x.T if g.chance(0.7) else x
    start = pt.zeros_like(other[0])
    weight = g.real(0)
    makes = [
        lambda: pytensor.scan(lambda s, h: pt.tanh(h + s), other, start, return_updates=False),
        lambda: pytensor.scan(lambda s, h: pt.tanh(h + s), other, start, return_updates=False)[-1],
        lambda: pytensor.scan(lambda s: s.sum(), other, None, return_updates=False),
        lambda: pytensor.scan(lambda s: s**2 + weight, other, None, return_updates=False),
        lambda: pytensor.scan(
            lambda h, w: 0.5 * h + pt.tanh(w), None, start, other[0], n_steps=3, return_updates=False
        ),
        lambda: pytensor.scan(lambda s, h: 0.5 * h + s - s.mean(), other, start, return_updates=False),
    ]
    return g.one_of(makes)()


@piece(2)
def branches(g):
    x = g.real()
    condition = g.one_of([lambda: g.real(0) > 0.1, lambda: g.real().sum() > 0, lambda: g.truth().any()])()
    return ifelse(condition, x, pt.tanh(g.same(x)))


@piece(1)
def graph_as_op(g):
    x = g.real(1, 2)
    y = g.near(x)
    a, b = x.type(), y.type()
    inside = g.one_of([a * b + a, (a * b).sum(), pt.tanh(a - a.mean(axis=0)) * b])
    return OpFromGraph([a, b], [inside])(x, y)


@piece(3)
def networks(g):
    x = g.real(2)
    logits = x @ g.fitting(lambda v: v.dtype == "float64" and v.ndim == 2 and g.dims(v)[0] == g.dims(x)[1])
    labels = g.fitting(lambda v: v.dtype == "int64" and g.dims(v) == g.dims(x)[:1])
    columns = abs(labels) % logits.shape[1]
    width = g.length(x, 1)
    makes = [
        lambda: synk.ops.softmax_cross_entropy(logits, columns),
        lambda: pt.nnet.relu(logits) if hasattr(pt, "nnet") else pt.maximum(logits, 0),
        lambda: -pt.special.log_softmax(logits, axis=1)[pt.arange(logits.shape[0]), columns].mean(),
        lambda: synk.ops.layer_norm(x, np.ones(width), np.zeros(width)),
    ]
    return g.one_of(makes)()


@piece(8)
def gradients(g):
    value = g.real()
    near = g.near(value)
    cost = g.one_of(
        [
            lambda: value.sum(),
            lambda: value.mean(),
            lambda: (value**2).mean(),
            lambda: pt.tanh(value * near).sum(),
        ]
    )()
    return pytensor.grad(cost, g.leaves(cost))
