"""Pieces with graphs within: loops, branches, Ops of graphs, networks, gradients."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph

import synk.ops
from support.exact.pieces.registry import piece
from synk.compile.compat import optional_class

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


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
