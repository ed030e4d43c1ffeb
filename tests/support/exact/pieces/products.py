"""Pieces that multiply matrices and solve, and running sums and sorts along an axis."""

import numpy as np
import pytensor.tensor as pt

from support.cases.choices import Unfit
from support.exact.pieces.registry import piece


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
