"""Pooling by slices, against the definitions of its Ops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import check_entry, normal, perform, poolings
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.window import LAYOUTS, Pooling, Window, lengths, ordered
from synk.ops.pool import (
    AvgPool2d,
    AvgPool2dGradient,
    GlobalAvgPool2d,
    MaxPool2d,
    MaxPool2dChosen,
    MaxPool2dGradient,
)

few = settings(max_examples=40)

STRANGE = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 1.0, 2.0])


@few
@given(poolings(), st.booleans())
def test_max_pool(case, strange):
    pooling, shape, _ = case
    x = np.random.default_rng(0).choice(STRANGE, shape) if strange else normal(shape)
    check_entry(MaxPool2d(pooling), x)


@few
@given(poolings(), st.booleans())
def test_max_pool_gradient(case, strange):
    pooling, shape, y = case
    _, index = perform(MaxPool2d(pooling), normal(shape))
    gy = normal(y, 1)
    if strange:
        gy[gy > 1] = np.inf  # where it is not wanted, it must not become NaN
    check_entry(MaxPool2dGradient(pooling), gy, index, *lengths(pooling.layout, shape)[2:])


@settings(max_examples=15)
@given(poolings(), st.booleans())
def test_chosen_pixels(case, strange):
    pooling, shape, _ = case
    _, index = perform(MaxPool2d(pooling), normal(shape))
    x = np.random.default_rng(0).choice(STRANGE, shape) if strange else normal(shape, 1)
    check_entry(MaxPool2dChosen(pooling), x, index)


@few
@given(poolings(), st.booleans())
def test_avg_pool(case, count_padding):
    pooling, shape, y = case
    check_entry(AvgPool2d(pooling, count_padding), normal(shape))
    sides = lengths(pooling.layout, shape)[2:]
    check_entry(AvgPool2dGradient(pooling, count_padding), normal(y, 1), *sides)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_images", [0, 3])
def test_global_avg_pool(layout, n_images):
    check_entry(GlobalAvgPool2d(layout), normal(ordered(layout, n_images, 5, 4, 3)))


@pytest.mark.parametrize(("size", "dtype"), [((16, 16), "uint8"), ((16, 17), "int32")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_places_of_large_windows(size, dtype, layout):
    pooling = Pooling(Window(size, (1, 1)), layout)
    x = np.zeros(ordered(layout, 1, 2, 18, 18))
    check_entry(MaxPool2d(pooling), x)
    x[0, -1, -1, -1] = 1
    check_entry(MaxPool2d(pooling), x)
    last = perform(MaxPool2d(pooling), x)[1]
    assert last.dtype == dtype
    assert last.max() == size[0] * size[1] - 1


def test_first_of_equal_maxima_gets_the_gradient():
    pooling = Pooling(Window((2, 2), (2, 2)))
    kernels = PlainPool(np)
    _, index = kernels.max_pool(pooling, "uint8")(np.ones((1, 1, 2, 2)))
    gx = kernels.max_pool_gradient(pooling)(np.full((1, 1, 1, 1), 5.0), index, 2, 2)
    np.testing.assert_array_equal(gx, [[[[5, 0], [0, 0]]]])


def test_windows_of_minus_infinity_do_not_point_to_the_padding():
    pooling = Pooling(Window((2, 2), (2, 2), ((1, 1), (1, 1))))
    _, index = PlainPool(np).max_pool(pooling, "uint8")(np.full((1, 1, 2, 2), -np.inf))
    np.testing.assert_array_equal(index, [[[[3, 2], [1, 0]]]])


def test_one_of_two_results_is_written_where_it_is_wanted():
    x, out = normal((1, 2, 4, 4)), np.empty((1, 2, 2, 2))
    pooling = Pooling(Window((2, 2), (2, 2)))
    y, index = PlainPool(np).max_pool(pooling, "uint8")(x, out=(out, None))
    assert y is out
    np.testing.assert_array_equal(index, perform(MaxPool2d(pooling), x)[1])


def test_global_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 x 3 pixels have no mean"):
        PlainPool(np).global_avg_pool("NCHW")(np.zeros((1, 1, 0, 3)))


def test_gradients_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"gy has shape \(1, 1, 2, 2\); pooling gives \(1, 1, 1, 1\)"):
        PlainPool(np).avg_pool_gradient(Pooling(Window((2, 2), (2, 2))), True)(np.ones((1, 1, 2, 2)), 2, 2)
