"""Rewrites of patterns apply where they did, and are tried where their Ops follow one another."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.basic import PatternNodeRewriter
from pytensor.tensor.rewriting.math import logsigm_to_softplus

from synk.compile import array_mode
from synk.compile.programs.elementwise.fusion import TAG
from synk.compile.rewriting.patterns import is_slow_pattern
from synk.compile.rewriting.rewrites import NATIVE

d = pt.dvector("d")


def scalar_ops(graph):
    """Return the names of the scalar Ops of a graph, after all rewrites but those that fuse them."""
    query = array_mode().provided_optimizer.excluding(TAG, NATIVE)
    function = pytensor.function([d], graph, mode=Mode("py", query))
    ops = [getattr(node.op, "scalar_op", node.op) for node in function.maker.fgraph.toposort()]
    return {str(op).lower() for op in ops}


@pytest.mark.parametrize(
    ("graph", "wanted", "gone"),
    [
        (pt.log(pt.sigmoid(d)), "softplus", "log"),
        (pt.log(1 - pt.sigmoid(d)), "softplus", "log"),
        (1 - pt.erf(d), "erfc", "sub"),
        (pt.polygamma(0, d), "psi", "polygamma"),
        (pt.log(pt.exp(d) - pt.exp(2 * d)), "log1mexp", "log"),
    ],
    ids=["one Op in another", "beside a number", "an Op that is looked for first", "a number", "two Ops"],
)
def test_a_pattern_is_replaced_where_it_is(graph, wanted, gone):
    names = scalar_ops(graph)
    assert wanted in names
    assert gone not in names


@pytest.mark.skipif(not is_slow_pattern(logsigm_to_softplus), reason="this PyTensor matches quickly")
def test_patterns_are_compared_where_their_ops_follow_one_another(monkeypatch):
    compared = []
    plain = PatternNodeRewriter.transform
    monkeypatch.setattr(
        PatternNodeRewriter,
        "transform",
        lambda self, *given, **named: compared.append(self.name) or plain(self, *given, **named),
    )
    graph = pt.log(1 + pt.exp(d)) - 1 / (1 + d**2) + d * pt.sigmoid(d)
    pytensor.function([d], graph.sum(), mode=array_mode())
    assert compared == []
    pytensor.function([d], pt.log(pt.sigmoid(d)), mode=array_mode())
    assert "logsigm_to_softplus" in compared


def test_a_pattern_that_is_wrong_for_narrow_integers_stays_guarded():
    k = pt.bvector("k")  # int8, whose -128 is its own negative
    function = pytensor.function([k], pt.log(pt.sigmoid(k)), mode=array_mode())
    lowest, *others = function(np.array([-128, -3, 0, 5], "int8"))
    assert lowest < -100  # -inf in float32; by the pattern it would be 0
    np.testing.assert_allclose(others, -np.logaddexp(0, [3.0, 0.0, -5.0]), rtol=1e-5)  # of float32, near 1
