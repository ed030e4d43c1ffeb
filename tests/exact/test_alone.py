"""Collectives that are left out of a run of one rank."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.slow import slow
from synk import ops
from synk.compile.programs.graphs.serialize import topological
from synk.exact import alone
from synk.exact.alone import without_collectives
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.define import define
from synk.exact.results import exact_definition


def collectives(definition):
    results = [*definition.outputs, *(update.value for update in definition.updates)]
    return [node for node in topological(results) if isinstance(node.op, CollectiveOp)]


def test_none_are_left_of_several_one_after_another():
    x, w = pt.dmatrix("x"), pytensor.shared(np.ones(3), name="w")
    normed = (x - x.mean(0)) / x.std(0)
    loss = pt.sqr(ops.all_gather(pt.tanh(normed @ w))).mean()
    definition = define("f", [x], [loss, pt.sort(x, 0)], updates=[(w, w - pt.grad(loss, w))])
    exact = exact_definition(definition)
    assert len(collectives(exact)) > 2
    assert collectives(without_collectives(exact)) == []


def test_a_chain_of_them_is_gone_through_once(monkeypatch):
    remade = []
    plain = alone.remade
    monkeypatch.setattr(alone, "remade", lambda node, inputs: remade.append(node) or plain(node, inputs))
    x = h = pt.dmatrix("x")
    for _ in range(30):
        h = pt.tanh(h - ops.all_reduce(h.sum(0), "sum"))
    exact = exact_definition(define("f", [x], [h]))
    n_collectives = len(collectives(exact))
    assert n_collectives >= 30
    assert collectives(without_collectives(exact)) == []
    assert 0 < len(remade) <= len(topological(exact.results)) - n_collectives


@pytest.mark.parametrize("op", ["sum", "max", *map(slow, ["prod", "min", "avg"])])
def test_results_of_one_rank_are_those_of_plain_pytensor(ranks, op):
    ranks(1)
    x, w = pt.dmatrix("x"), pytensor.shared(np.arange(1.0, 4.0), name="w")
    z = pt.tanh(x) * w
    parts = [ops.all_reduce(z, op), ops.reduce_scatter(z, op), ops.all_gather(z, 1), ops.broadcast(z)]
    outputs = [one for part in parts for one in (part, pt.grad(pt.sqr(part).sum(), w))]
    f = synk.function([x], [(one, "gather") for one in outputs])
    plain = pytensor.function([x], outputs, mode="FAST_COMPILE")
    rows = np.linspace(-1, 2, 12).reshape(4, 3)
    for value, expected in zip(f(rows), plain(rows), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
