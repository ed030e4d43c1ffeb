"""Gradients of pooling: their definitions, shapes and refusals."""

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import check_shapes, normal, perform, poolings
from synk.ops.kernels.window import Pooling, Window, lengths
from synk.ops.pool import AvgPool2d, AvgPool2dGradient, MaxPool2d, MaxPool2dGradient


@given(poolings(), st.booleans())
def test_gradients_of_means_are_their_transpose(case, count_padding):
    pooling, shape, outputs = case
    x, gy = normal(shape), normal(outputs, 1)
    sides = lengths(pooling.layout, shape)[2:]
    (y,), (gx,) = (
        perform(AvgPool2d(pooling, count_padding), x),
        perform(AvgPool2dGradient(pooling, count_padding), gy, *sides),
    )
    np.testing.assert_allclose((gx * x).sum(), (gy * y).sum(), rtol=1e-9, atol=1e-9)


@given(poolings())
def test_gradients_of_maxima_go_to_the_maxima(case):
    pooling, shape, outputs = case
    x, gy = normal(shape), normal(outputs, 1)
    y, index = perform(MaxPool2d(pooling), x)
    (gx,) = perform(MaxPool2dGradient(pooling), gy, index, *lengths(pooling.layout, shape)[2:])
    np.testing.assert_allclose((gx * x).sum(), (gy * y).sum(), rtol=1e-9, atol=1e-9)
    assert np.isin(x[gx != 0], y).all()


@settings(max_examples=15)
@given(poolings())
def test_shapes(case):
    pooling, shape, outputs = case
    sides = lengths(pooling.layout, shape)[2:]
    _, index = perform(MaxPool2d(pooling), normal(shape))
    check_shapes(MaxPool2dGradient(pooling), normal(outputs), index, *sides)
    check_shapes(AvgPool2dGradient(pooling), normal(outputs), *sides)


def test_wrong_types_of_index_are_refused():
    gy = pt.tensor4("gy", dtype="float32")
    op = MaxPool2dGradient(Pooling(Window((2, 2))))
    for index in (pt.tensor4(dtype="int64"), pt.tensor3(dtype="uint8")):
        with pytest.raises(TypeError, match="index must be the second output of MaxPool2d, 4-D uint8"):
            op(gy, index, 3, 3)


def test_gradients_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"gy has shape \(1, 1, 2, 2\); pooling gives \(1, 1, 1, 1\)"):
        perform(AvgPool2dGradient(Pooling(Window((2, 2), (2, 2)))), np.ones((1, 1, 2, 2)), 2, 2)
