"""Products that are taken out of the steps of a Scan: how many are left; numbers stay what they are."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scan.basic import scan, until
from pytensor.scan.op import Scan
from pytensor.tensor.blas import Dot22, Gemm, Gemv
from pytensor.tensor.math import Dot

from synk.compile import ArrayLinker, array_mode
from synk.compile.regions.loops import step_of
from synk.compile.regions.region import Region

NATIVE = array_mode()

# As it is written, but for the steps of loops: rewriting it takes as long as all the rest.
PYTHON = Mode(ArrayLinker(native=False), RewriteDatabaseQuery(include=["minimum_compile"]))

x, v = pt.dtensor3("x"), pt.dmatrix("v")
u, w, h, s = pt.dmatrix("u"), pt.dmatrix("w"), pt.dmatrix("h"), pt.dscalar("s")


def values():
    rng = np.random.default_rng(0)
    shapes = {x: (9, 4, 3), v: (9, 3), u: (3, 5), w: (5, 5), h: (4, 5), s: ()}
    return {variable: rng.normal(size=shape) / 3 for variable, shape in shapes.items()}


def steps(step, **keywords):
    return scan(step, return_updates=False, **keywords)


def products_of(graph):
    """Return how many products a graph has, and then those of each Scan's step."""
    nodes = [
        inner
        for node in graph.toposort()
        for inner in (node.op.fgraph.toposort() if isinstance(node.op, Region) else [node])
    ]
    scans = [node.op for node in nodes if isinstance(node.op, Scan)]
    return [count(nodes), *(count(step_of(op).toposort()) for op in scans)]


def count(nodes):
    return sum(isinstance(node.op, Dot22 | Gemm | Gemv | Dot) or "Matmul" in str(node.op) for node in nodes)


def check(outputs, expected):
    given = values()
    native, python = (
        pytensor.function([*given], outputs, mode=mode, on_unused_input="ignore") for mode in (NATIVE, PYTHON)
    )
    for one, other in zip(native(*given.values()), python(*given.values()), strict=True):
        np.testing.assert_allclose(one, other, 1e-10)
    assert products_of(native.maker.fgraph) == expected


def layer(**keywords):
    return steps(lambda row, h, u, w: pt.tanh(row @ u + h @ w), sequences=x, outputs_info=h, **keywords)


def test_products_with_a_sequence_are_made_before_the_loop():
    check([layer(non_sequences=[u, w])], [1, 1])


def test_a_gradient_multiplies_nothing_again_and_sums_weights_after_the_loop():
    states = layer(non_sequences=[u, w])
    # Before the loop, and for the slopes of both weights; the step, and the way back through it.
    check(pytensor.grad((states**2).sum(), [u, w]), [3, 1, 1])


@pytest.mark.slow
def test_gradients_of_an_end_and_of_a_sequence_multiply_nothing_again():
    states = layer(non_sequences=[u, w])
    check(pytensor.grad(states[-1].sum(), [u, w, h]), [3, 1, 1])
    check([states, *pytensor.grad((states**2).sum(), [x, u, w])], [3, 1, 2])


@pytest.mark.slow
def test_slopes_for_two_weights_are_returned_once():
    def gated(row, h, c, u, w, b, d):
        gate, value = pt.split(row @ u + b + h @ w + d, [5, 5], axis=1)
        c = pt.sigmoid(gate) * c + pt.tanh(value)
        return pt.tanh(c), c

    b, d = pt.dvectors("b", "d")
    states, _ = steps(gated, sequences=x, outputs_info=[h, h], non_sequences=[u, w, b, d])
    slopes = pytensor.grad((states**2).sum(), [u, w, b, d])
    function = pytensor.function([x, h, u, w, b, d], slopes, mode=NATIVE)
    scans = [
        inner.op
        for node in function.maker.fgraph.toposort()
        for inner in (node.op.fgraph.toposort() if isinstance(node.op, Region) else [node])
        if isinstance(inner.op, Scan)
    ]
    assert [op.info.n_nit_sot for op in scans] == [1, 1]  # products of states, and slopes


def test_some_rows_or_rows_backwards_are_parts_of_products():
    check([layer(non_sequences=[u, w], go_backwards=True)], [1, 1])
    check([layer(non_sequences=[u, w], n_steps=5)], [1, 1])


def test_products_of_vectors_are_one_of_a_matrix():
    check([steps(lambda row, u: pt.tanh(row @ u), sequences=v, non_sequences=u)], [1])
    check(
        [
            steps(
                lambda row, h, u, w: pt.tanh(u.T @ row + w @ h),
                sequences=v,
                outputs_info=h[0],
                non_sequences=[u, w],
            )
        ],
        [1, 1],
    )


def test_a_loop_that_ends_when_it_likes_multiplies_in_its_steps():
    states = steps(
        lambda row, h, u, w: (pt.tanh(row @ u + h @ w), until(h.sum() > s)),
        sequences=x,
        outputs_info=h,
        non_sequences=[u, w],
    )
    check([states], [0, 2])
