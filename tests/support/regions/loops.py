"""Pieces of small graphs that hold graphs: Scan in many forms, OpFromGraph, IfElse."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.scan.basic import scan
from pytensor.tensor.random import basic

from support.cases.choices import Unfit
from support.regions.exactness import EXACT
from support.regions.graphs import piece
from synk.compile.compat import optional_class

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


def looped(step, **keywords):
    return scan(step, return_updates=False, **keywords)


def floats(g, *ndims):
    return g._of(
        lambda v: v.variable.type.dtype == "float64" and v.variable.type.ndim in ndims and v.level <= EXACT
    )


def number(g):
    """Return a number, if need be one that is made now."""
    try:
        return floats(g, 0)
    except Unfit:
        return g.one_of([lambda: pt.constant(2.0), lambda: floats(g, 1)[-1], lambda: floats(g, 2)[0, 0]])()


def rows(g, *ndims):
    """Return rows, if need be as floats."""
    try:
        return floats(g, *ndims)
    except Unfit:
        return g.whole(*ndims).astype("float64")


def some(g, *states):
    """Return all rows of traces, or the last ones, of which a loop keeps few, or others."""
    rows = [lambda x: x, lambda x: x[-1], lambda x: x[-1] * 2, lambda x: x[-1] + 1, lambda x: x[-2:]]
    found = list(map(g.one_of(rows), states))
    g.wanted += found
    return found


@piece(2)
def loops_of_numbers(g):
    x, s = rows(g, 1), number(g)
    makes = [
        lambda: looped(lambda a, b: a + b, sequences=x, outputs_info=s),
        lambda: looped(lambda a, b: a - b * 0.5, sequences=x, outputs_info=s, go_backwards=True),
        lambda: looped(lambda a: a * 2 + s, sequences=x),
        lambda: looped(lambda a, c: pt.switch(a > 0, a, c), sequences=x, outputs_info=s),
        lambda: looped(
            lambda a, two, one: a + one - two,
            sequences=x,
            outputs_info={"initial": pt.stack([s, s + 1]), "taps": [-2, -1]},
        ),
        lambda: looped(
            lambda three, one: three + one,
            outputs_info={"initial": pt.stack([s, s + 1, s - 1]), "taps": [-3, -1]},
            n_steps=g.number(1, 6),
        ),
        lambda: looped(
            lambda before, now, after, total: total + before - after + now,
            sequences={"input": x, "taps": [-1, 0, 1]},
            outputs_info=s,
        ),
        lambda: looped(
            lambda k, total: total + k, sequences=pt.arange(x.shape[0]), outputs_info=pt.constant(0)
        ),
        lambda: looped(lambda b: b + 1, outputs_info=s, n_steps=g.whole(0).astype("int64") % 4),
        lambda: looped(lambda b: (b + 1, pytensor.scan.utils.until(b > 3)), outputs_info=s, n_steps=9),
    ]
    return some(g, g.one_of(makes)())


DRAWS = [
    lambda a, **given: basic.normal(a, 0.5, **given),
    lambda a, **given: basic.uniform(-1.0, abs(a), **given),
    lambda a, **given: basic.exponential(abs(a) + 0.1, **given),
    lambda a, **given: basic.gamma(abs(a) + 0.1, 0.5, **given),
    lambda a, **given: basic.integers(-3, 5, size=a.shape, **given),
    lambda a, **given: basic.bernoulli(pt.clip(abs(a), 0, 1), **given),
    lambda a, **given: basic.categorical(pt.constant([0.25, 0.25, 0.5]), size=a.shape, **given),
]


@piece(2)
def loops_that_draw(g):
    x, s, draw = rows(g, 1, 2), number(g), g.one_of(DRAWS)
    start = pt.zeros_like(x[0]) + s
    generator = pytensor.shared(np.random.default_rng(g.number(0, 99)))

    def step(row, state, generator):
        finite = pt.switch(abs(row) < 9, row, 0.5)
        after, drawn = draw(pt.tanh(finite), rng=generator, return_next_rng=True)
        return state * 0.5 + drawn, after

    return some(g, looped(step, sequences=x, outputs_info=[start, generator])[0])


@piece(4)
def loops_of_several(g):
    x, s = rows(g, *g.one_of([(1,), (2,), (2,)])), number(g)
    start = pt.zeros_like(x[0]) + s
    makes = [
        lambda: looped(lambda a, b: [b, a], outputs_info=[start, start + 1], n_steps=g.number(1, 5)),
        lambda: looped(lambda r, a, b: [b + r, a], sequences=x, outputs_info=[start, start + 1]),
        lambda: looped(lambda r, a, b: [b, a], sequences=x, outputs_info=[start, start + 1]),
        lambda: looped(lambda r, a: [a + r, a, r], sequences=x, outputs_info=[start, None, None]),
        lambda: looped(
            lambda r, a2, a1, b: [a1 - a2, b + r * a1],
            sequences=x,
            outputs_info=[{"initial": pt.stack([start, start + 1]), "taps": [-2, -1]}, start],
        ),
        lambda: looped(
            lambda r, a, b, c: [b, c, a + r], sequences=x, outputs_info=[start, start + 1, start + 2]
        ),
        lambda: looped(lambda r, q, a: [a + r * q], sequences=[x, x[::-1]], outputs_info=start),
    ]
    states = g.one_of(makes)()
    return some(g, *(states if isinstance(states, list) else [states]))


@piece(3)
def loops_of_rows(g):
    x = floats(g, 2)
    try:
        y = g.near(x, lambda v: v.variable.type.ndim == 1 and v.variable.type.dtype == "float64")
    except Unfit:
        y = g.one_of([lambda: x[0], lambda: x[-1] + 1, lambda: pt.zeros_like(x[0]) + number(g)])()
    makes = [
        lambda: looped(lambda r, h: h * 0.5 + r, sequences=x, outputs_info=y),
        lambda: looped(lambda r, h: h[::-1] + r, sequences=x, outputs_info=y),
        lambda: looped(lambda r, h: h[::-1], sequences=x, outputs_info=y),
        lambda: looped(lambda r: r[::-1], sequences=x),
        lambda: looped(lambda r: r, sequences=x),
        lambda: looped(lambda r: r.sum(), sequences=x),
        lambda: looped(lambda r, h: pt.set_subtensor(h[0], r[-1]), sequences=x, outputs_info=y),
        lambda: looped(lambda r, h: pt.inc_subtensor(h[1:], r[:-1]), sequences=x, outputs_info=y),
        lambda: looped(lambda r, h: pt.concatenate([h[1:], r[:1]]), sequences=x, outputs_info=y),
        lambda: looped(lambda r, m: m + r, sequences=x, outputs_info=x),
        lambda: looped(lambda r, m: m.T.reshape(m.shape) + r[0], sequences=x, outputs_info=x),
        lambda: looped(lambda r: (x * r).sum(axis=1), sequences=x),
        lambda: looped(lambda k, h: h + x[k], sequences=pt.arange(x.shape[0]), outputs_info=y),
        lambda: looped(
            lambda r, t: t + looped(lambda a, b: a + b, sequences=r, outputs_info=t)[-1],
            sequences=x,
            outputs_info=y[0],
        ),
        lambda: looped(lambda r: looped(lambda a, b: a - b, sequences=r, outputs_info=y), sequences=x),
        lambda: looped(
            lambda r, h: pt.dot(x[: h.shape[0]].T[: h.shape[0]], h) + r, sequences=x, outputs_info=y
        ),
    ]
    return some(g, g.one_of(makes)())


@piece(2)
def gradients_of_loops(g):
    x, s = rows(g, 1, 2), number(g)
    start = pt.zeros_like(x[0]) + s
    makes = [
        lambda: looped(lambda r, h: h * r + s, sequences=x, outputs_info=start),
        lambda: looped(
            lambda r, b, a: a * b + r,
            sequences=x,
            outputs_info={"initial": pt.stack([start, start + 1]), "taps": [-2, -1]},
        ),
        lambda: looped(lambda r, a, b: [b, a * r], sequences=x, outputs_info=[start, start + 1])[1],
        lambda: looped(lambda r, a: a + r * r, sequences=x, outputs_info=start),
        lambda: looped(lambda r: r * r * s, sequences=x),
    ]
    states = g.one_of(makes)()
    cost = g.one_of([lambda: states.sum(), lambda: states[-1].sum()])()
    return pytensor.grad(cost, [one for one in (x, s) if g.chance(0.8)] or [x])


@piece(3)
def graph_as_op(g):
    x = g.real(1, 2)
    y = g.same(x)
    a, b = x.type(), y.type()
    inside = g.one_of(
        [
            lambda: [a * b + a],
            lambda: [(a * b).sum(), a],
            lambda: [a[::-1], b],
            lambda: [pt.inc_subtensor(a[1:], b[:-1])],
            lambda: [pt.concatenate([a, b]), a - b],
        ]
    )()
    made = OpFromGraph([a, b], inside)(x, y)
    return made


@piece(4)
def branches(g):
    x = g.any()
    y = g.same(x)
    condition = g.one_of(
        [lambda: g.truth().any(), lambda: g.exact().sum() > 0, lambda: g.one_of([pt.gt, pt.lt])(x.size, 3)]
    )()
    a, b = g.one_of([(x, y), (x * 2, y + x), (x[0], y[-1] * 2) if x.ndim else (x, y)])
    if g.chance(0.3):
        return ifelse(condition, [a, y], [b, x])
    return ifelse(condition, a, b)


@piece(1)
def wrong(g):
    """A value whose computation raises."""
    x = g.any(1)
    if g.chance(0.7):
        raise Unfit
    return g.one_of(
        [lambda: x[7 + g.shape(x)[0]], lambda: x[pt.constant([0, 400])], lambda: x.reshape((7, -1))]
    )()
