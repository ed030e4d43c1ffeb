"""Rewrites that look for what a graph does not have are left out there, and made where it has."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.blas import Dot22
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting import math

from synk.compile import array_mode

d, x = pt.dvector("d"), pt.dmatrix("x")
D, X = np.array([2.0, 3.0]), np.arange(6.0).reshape(2, 3)
CONSTANT = np.diag([4.0, 5.0])


@pytest.mark.parametrize(
    ("product", "wanted"),
    [
        (pt.diag(d) @ x, np.diag(D) @ X),
        (pt.eye(2) @ x, X),
        (pt.constant(CONSTANT) @ x, CONSTANT @ X),
        (x.T @ pt.diag(d), X.T @ np.diag(D)),
        ((pt.diag(d) * 2 @ pt.diag(d)) @ x, 2 * np.diag(D) @ np.diag(D) @ X),
    ],
    ids=["diag", "eye", "constant", "columns", "product of two"],
)
def test_a_product_with_a_diagonal_matrix_scales(product, wanted):
    function = pytensor.function([d, x], product, mode=array_mode(), on_unused_input="ignore")
    np.testing.assert_allclose(function(D, X), wanted)
    assert not any(isinstance(node.op, Dot | Dot22) for node in function.maker.fgraph.toposort())


def test_what_makes_diagonals_is_looked_for_once_a_graph_has_it(monkeypatch):
    asked = []
    plain = math.check_assumption
    monkeypatch.setattr(math, "check_assumption", lambda *given: asked.append(given) or plain(*given))
    pytensor.function([x], pt.tanh(x @ x.T), mode=array_mode())
    assert not asked
    pytensor.function([d, x], pt.tanh(pt.diag(d) @ x), mode=array_mode())
    assert asked
