"""Graphs that differ from each other, of every kind that functions are made of; `growth.py` compiles them.

number -> graph(number) -> Graph: what a function is made of, and what it is called with
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph

ROWS = 12


class Graph(NamedTuple):
    """What a function is made of, and what it is called with."""

    inputs: list[Any]
    outputs: list[Any]
    updates: list[tuple[Any, Any]]
    values: list[np.ndarray]


def graph(number: int) -> Graph:
    """Return graph ``number``: of a form that comes again, but with constants and lengths of its own."""
    return FORMS[number % len(FORMS)](number)


def elementwise(number: int) -> Graph:
    """Chains of elementwise Ops, longer and longer."""
    x = y = pt.dmatrix("x")
    for k in range(number // len(FORMS) % 5 + 1):
        y = pt.tanh(y * (number + k / 7)) + pt.exp(-(x**2))
    return Graph([x], [y.sum(), y.max(axis=0)], [], [rows(number)])


def products(number: int) -> Graph:
    """A table of constants, in a product."""
    x = pt.dmatrix("x")
    width = number // len(FORMS) % 40 + 1
    return Graph([x], [x @ rows(number, 3)[: width % 3 + 1].repeat(width, 0).T], [], [rows(number)])


def updated(number: int) -> Graph:
    """Shared variables of their own, with updates."""
    x, v = pt.dmatrix("x"), pytensor.shared(rows(number, 4), name="v")
    n = pytensor.shared(np.int64(number), name="n")
    return Graph([x], [(x @ v.T).mean()], [(v, v * 0.5 + x.sum(axis=0) / number), (n, n + 1)], [rows(number)])


def scanned(number: int) -> Graph:
    """A loop."""
    x = pt.dmatrix("x")
    step, start = float(number), pt.zeros((), "float64")
    sums = pytensor.scan(lambda row, s: s * 0.5 + row.sum() / step, x, [start], return_updates=False)
    return Graph([x], [sums[-1]], [], [rows(number)])


def gradient(number: int) -> Graph:
    """The gradient of a small network."""
    x, w = pt.dmatrix("x"), pytensor.shared(rows(number, 3).T, name="w")
    v = pytensor.shared(np.ones(3) / number, name="v")
    loss = ((pt.tanh(x @ w) @ v - number) ** 2).mean()
    gradients = pt.grad(loss, [w, v])
    return Graph(
        [x], [loss], [(p, p - 0.01 * g) for p, g in zip([w, v], gradients, strict=True)], [rows(number)]
    )


def loop_gradient(number: int) -> Graph:
    """The gradient of a loop."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.ones(WIDTH) / number, name="w")
    states = pytensor.scan(
        lambda row, s, w: pt.tanh(row * w + s / number), x, [pt.zeros(WIDTH)], [w], return_updates=False
    )
    cost = (states[-1] ** 2).sum()
    return Graph([x], [cost], [(w, w - 0.01 * pt.grad(cost, w))], [rows(number)])


def spread(number: int) -> Graph:
    """Results for which ranks meet inside the graph."""
    x = pt.dmatrix("x")
    return Graph(
        [x], [x.std(axis=0) * number, pt.sort(x, axis=0)[number % ROWS], x.cumsum(axis=0)], [], [rows(number)]
    )


def inner(number: int) -> Graph:
    """An Op with a graph inside, and products of many."""
    x, y = pt.dvector("x"), pt.dmatrix("y")
    op = OpFromGraph([x], [pt.sqrt(x**2 + number)])
    return Graph([y], [op(y.sum(axis=1)).sum(), pt.prod(y + number, axis=1).sum()], [], [rows(number)])


def indexed(number: int) -> Graph:
    """Positions, and parts that are set."""
    x = pt.dmatrix("x")
    y = pt.set_subtensor(x[:, number % WIDTH], float(number))
    return Graph(
        [x], [y[:, [0, number % WIDTH]].sum(axis=1), pt.special.softmax(y, axis=1)], [], [rows(number)]
    )


def drawn(number: int) -> Graph:
    """Random numbers, and their generator's next state."""
    x, generator = pt.dmatrix("x"), pytensor.shared(np.random.default_rng(number), name="generator")
    after, draw = pt.random.normal(0, number, size=(3,), rng=generator, return_next_rng=True)
    return Graph([x], [x.sum() + 0 * draw.sum()], [(generator, after)], [rows(number)])


WIDTH = 5  # columns
FORMS: tuple[Callable[[int], Graph], ...] = (
    elementwise,
    products,
    updated,
    scanned,
    gradient,
    loop_gradient,
    spread,
    inner,
    indexed,
    drawn,
)


def rows(number: int, length: int = ROWS) -> np.ndarray:
    """Return an array of so many rows."""
    return np.random.default_rng(number).normal(size=(length, WIDTH))
