"""Pieces that transpose, reshape, join, repeat, split and fill."""

import pytensor.tensor as pt

from support.cases.choices import Unfit
from support.exact.pieces.registry import piece


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
