"""Lengths are known to rewrites as PyTensor knows them, and inferred only where one asks."""

import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import ViewOp
from pytensor.graph.fg import FunctionGraph

from synk.compile import array_mode
from synk.compile.rewriting.shapes_on_demand import NEEDED, ShapesOnDemand


class CountingView(ViewOp):
    """A view that counts how often it is asked for its shape."""

    __props__ = ()

    def __init__(self):
        self.asked = 0

    def infer_shape(self, *of_node):
        self.asked += 1
        return of_node[-1]


def test_a_shape_that_no_rewrite_wants_is_not_inferred():
    x, view = pt.fvector(), CountingView()
    y = x
    for _ in range(50):
        y = view(y)
    function = pytensor.function([x], y, mode=array_mode())
    np.testing.assert_array_equal(function(np.arange(3, dtype="f")), np.arange(3))
    assert view.asked == 0


def test_a_length_is_known_without_computing_what_has_it():
    x, y = pt.fmatrix(), pt.fmatrix()
    function = pytensor.function(
        [x, y], pt.tanh(x @ y + 1).shape, mode=array_mode(), on_unused_input="ignore"
    )
    # The product itself would be an error.
    assert function(np.ones((2, 3), "f"), np.ones((9, 5), "f")).tolist() == [2, 5]


@pytest.mark.slow
@pytest.mark.skipif(not NEEDED, reason="this PyTensor infers shapes on demand")
def test_a_long_chain_is_inferred_without_recursion_and_once():
    x, view = pt.fvector(), CountingView()
    y = x
    for _ in range(1_000):
        y = view(y)
    graph = FunctionGraph([x], [y], features=[ShapesOnDemand()], clone=False)
    most = sys.getrecursionlimit()  # which PyTensor raises
    try:
        sys.setrecursionlimit(500)
        (length,) = graph.shape_feature.shape_of[y]
    finally:
        sys.setrecursionlimit(most)
    assert length.eval({x: np.ones(7, "f")}) == 7
    assert graph.shape_feature.shape_of[y] == (length,)
    assert view.asked == 1_000


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_lengths_that_depend_on_values_are_numpys(rows):
    x, keep, start = pt.fmatrix(), pt.bvector(), pt.lscalar()
    kept = x[keep.nonzero()[0]][start:]
    joined = pt.concatenate([kept, x], axis=0)
    function = pytensor.function(
        [x, keep, start], [joined.shape[0], pt.zeros_like(joined).sum() + joined.shape[1]], mode=array_mode()
    )
    matrix, flags = np.ones((rows, 3), "f"), np.arange(rows) % 2 == 0
    expected = np.concatenate([matrix[flags][1:], matrix])
    assert [float(one) for one in function(matrix, flags.astype("int8"), 1)] == [*map(float, expected.shape)]
