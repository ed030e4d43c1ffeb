"""Rewrites that look for what a graph does not have are left out there, and made where it has."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.blas import Dot22
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting import math
from pytensor.tensor.rewriting.linalg import products, utils

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


def test_an_orthogonal_matrix_by_its_transpose_is_the_identity():
    q, _ = pt.linalg.qr(x, mode="complete")
    function = pytensor.function([x], q.T @ q, mode=array_mode())
    np.testing.assert_array_equal(function(X), np.eye(2))
    assert not any(isinstance(node.op, Dot | Dot22) for node in function.maker.fgraph.toposort())


@pytest.mark.parametrize("module", [math, products, utils], ids=["diagonal", "orthogonal", "symmetric"])
def test_kinds_of_matrices_are_asked_for_in_graphs_that_may_have_them(module, monkeypatch):
    asked = []
    plain = module.check_assumption
    monkeypatch.setattr(module, "check_assumption", lambda *given: asked.append(given) or plain(*given))
    pytensor.function([x], pt.tanh(x @ x.T), mode=array_mode())
    assert not asked
    pytensor.function([x], pt.tanh(pt.linalg.qr(x)[0].T @ x), mode=array_mode())
    assert asked
