"""Pieces that compute element by element, and reductions."""

import pytensor.tensor as pt

from support.exact.pieces.registry import piece

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
