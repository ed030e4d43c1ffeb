"""Pooling as symbolic Ops."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.gradient import DisconnectedInputError

from support.cases.images import check_shapes, normal, numeric_gradient, perform, poolings
from support.slow import slow
from synk.compile import array_mode
from synk.ops import avg_pool2d, global_avg_pool2d, max_pool2d
from synk.ops.kernels.window import Pooling, Window, lengths, ordered
from synk.ops.pool import (
    AvgPool2d,
    AvgPool2dGradient,
    GlobalAvgPool2d,
    MaxPool2d,
    MaxPool2dChosen,
    MaxPool2dGradient,
)

MODES = ["FAST_COMPILE", array_mode()]


@settings(max_examples=40)
@given(poolings(), st.booleans())
def test_definitions_against_loops(case, strange):
    pooling, shape, _ = case
    x = normal(shape)
    if strange:
        x[x > 1], x[x < -1] = np.nan, -np.inf
    last, window = pooling.layout == "NHWC", pooling.window
    image = x.transpose(0, 3, 1, 2) if last else x
    results = perform(MaxPool2d(pooling), x)
    results += [perform(AvgPool2d(pooling, count), x)[0] for count in (True, False)]
    y, index, mean, mean_inside = (r.transpose(0, 3, 1, 2) if last else r for r in results)
    for n, c, i, j in np.ndindex(*y.shape):
        top, left = i * window.stride[0] - window.padding[0][0], j * window.stride[1] - window.padding[1][0]
        seen = {
            place: image[n, c, top + p, left + q]
            for place, (p, q) in enumerate(np.ndindex(*pooling.size))
            if 0 <= top + p < image.shape[2] and 0 <= left + q < image.shape[3]
        }
        lost = [place for place, value in seen.items() if np.isnan(value)]
        first = lost[0] if lost else max(seen, key=lambda place: seen[place])
        assert index[n, c, i, j] == first
        np.testing.assert_equal(y[n, c, i, j], seen[first])
        total = sum(seen.values())
        np.testing.assert_allclose(mean[n, c, i, j], total / np.prod(pooling.size), atol=1e-12)
        np.testing.assert_allclose(mean_inside[n, c, i, j], total / len(seen), atol=1e-12)


@settings(max_examples=15)
@given(poolings())
def test_shapes(case):
    pooling, shape, _ = case
    check_shapes(MaxPool2d(pooling), normal(shape))
    check_shapes(AvgPool2d(pooling), normal(shape))
    check_shapes(GlobalAvgPool2d(pooling.layout), normal(shape))


@pytest.mark.parametrize("mode", [slow(MODES[0]), *MODES[1:]])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_by_differences(mode, layout):
    pooling = Pooling(Window((2, 3), (1, 2), ((1, 0), (1, 2))), layout)
    value = normal(ordered(layout, 1, 2, 4, 5))
    x = pt.tensor4("x", dtype="float64")
    outputs = [
        MaxPool2d(pooling)(x)[0],
        AvgPool2d(pooling)(x),
        AvgPool2d(pooling, False)(x),
        GlobalAvgPool2d(layout)(x),
    ]
    for output in outputs:
        loss = (output**3).sum()
        function = pytensor.function([x], [loss, pytensor.grad(loss, x)], mode=mode)
        expected = numeric_gradient(lambda v, function=function: function(v)[0], value)
        np.testing.assert_allclose(function(value)[1], expected, rtol=1e-6, atol=1e-7)


def test_defaults():
    x = pt.tensor("x", dtype="float32", shape=(None, 3, 7, 9))
    assert max_pool2d(x, 2).type.shape == avg_pool2d(x, 2).type.shape == (None, 3, 3, 4)
    assert max_pool2d(x, (3, 2), stride=1, padding=1).type.shape == (None, 3, 7, 10)
    assert global_avg_pool2d(x).type.shape == (None, 3)
    assert {max_pool2d(x, 2).dtype, avg_pool2d(x, 2).dtype, global_avg_pool2d(x).dtype} == {"float32"}


def test_padding_counts_or_not():
    x = np.ones((1, 1, 2, 2))
    for count_padding, corner in ((True, 0.25), (False, 1.0)):
        y = avg_pool2d(x, 2, stride=1, padding=1, count_padding=count_padding)
        assert pytensor.function([], y, mode="FAST_COMPILE")()[0, 0, 0, 0] == corner


@pytest.mark.parametrize("mode", MODES)
def test_places_of_maxima_have_no_gradient(mode):
    x = pt.tensor4("x", dtype="float64")
    y, index = MaxPool2d(Pooling(Window((2, 2), (2, 2))))(x)
    gradient = pytensor.grad((y * index).sum(), x)
    value = np.arange(4.0).reshape(1, 1, 2, 2)
    result = pytensor.function([x], gradient, mode=mode)(value)
    np.testing.assert_array_equal(result, [[[[0, 0], [0, 3]]]])
    with pytest.raises(DisconnectedInputError):
        pytensor.grad(index.astype("float64").sum(), x)


@pytest.mark.parametrize("function", [max_pool2d, avg_pool2d])
@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"size": 0}, ValueError, r"size=\(0, 0\) must be 1 or more"),
        ({"size": "2"}, TypeError, "size='2' must be an int or a pair of ints"),
        ({"size": 2, "stride": (1, 0)}, ValueError, r"stride=\(1, 0\) must be 1 or more"),
        ({"size": 2, "padding": 2}, ValueError, r"must be less than size=\(2, 2\); pad the image instead"),
        ({"size": 5}, ValueError, "does not fit in a height of 4 pixels"),
    ],
)
def test_arguments_that_are_refused(function, keywords, error, message):
    with pytest.raises(error, match=message):
        function(normal((1, 1, 4, 4)), **keywords)


@pytest.mark.parametrize("mode", MODES)
def test_images_without_pixels_are_refused_when_run(mode):
    x = pt.tensor4("x", dtype="float64")
    empty = np.zeros((1, 1, 0, 2))
    for y, message in ((max_pool2d(x, 1), "nothing to pool"), (global_avg_pool2d(x), "no.* mean")):
        with pytest.raises(ValueError, match=message):
            pytensor.function([x], y, mode=mode)(empty)


def test_gradient_of_the_global_mean_is_not_spread_before_it_is_used():
    x = pt.tensor4("x", dtype="float32")
    gradient = pytensor.grad(global_avg_pool2d(pt.exp(x)).sum(), x)
    function = pytensor.function([x], gradient, mode=array_mode())
    assert not any("Alloc" in str(node.op) for node in function.maker.fgraph.apply_nodes)
    np.testing.assert_allclose(function(np.zeros((1, 2, 2, 2), "float32")), 0.25)


# --- gradients ------------------------------------------------------------------------------------


@settings(max_examples=40)
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


@settings(max_examples=40)
@given(poolings())
def test_gradients_of_maxima_go_to_the_maxima(case):
    pooling, shape, outputs = case
    x, gy = normal(shape), normal(outputs, 1)
    y, index = perform(MaxPool2d(pooling), x)
    (gx,) = perform(MaxPool2dGradient(pooling), gy, index, *lengths(pooling.layout, shape)[2:])
    np.testing.assert_allclose((gx * x).sum(), (gy * y).sum(), rtol=1e-9, atol=1e-9)
    assert np.isin(x[gx != 0], y).all()


@settings(max_examples=40)
@given(poolings())
def test_chosen_pixels_are_the_transpose_of_the_gradient(case):
    pooling, shape, outputs = case
    x, gy = normal(shape), normal(outputs, 1)
    y, index = perform(MaxPool2d(pooling), x)
    (chosen,) = perform(MaxPool2dChosen(pooling), x, index)
    np.testing.assert_array_equal(chosen, y)
    other = normal(shape, 2)
    (of_other,) = perform(MaxPool2dChosen(pooling), other, index)
    (gx,) = perform(MaxPool2dGradient(pooling), gy, index, *lengths(pooling.layout, shape)[2:])
    np.testing.assert_allclose((gx * other).sum(), (gy * of_other).sum(), rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(poolings())
def test_shapes_of_gradients(case):
    pooling, shape, outputs = case
    sides = lengths(pooling.layout, shape)[2:]
    _, index = perform(MaxPool2d(pooling), normal(shape))
    check_shapes(MaxPool2dGradient(pooling), normal(outputs), index, *sides)
    check_shapes(AvgPool2dGradient(pooling), normal(outputs), *sides)
    check_shapes(MaxPool2dChosen(pooling), normal(shape), index)


def test_wrong_types_of_index_are_refused():
    gy = pt.tensor4("gy", dtype="float32")
    op = MaxPool2dGradient(Pooling(Window((2, 2))))
    for index in (pt.tensor4(dtype="int64"), pt.tensor3(dtype="uint8")):
        with pytest.raises(TypeError, match="index must be the second output of MaxPool2d, 4-D uint8"):
            op(gy, index, 3, 3)


def test_gradients_of_another_shape_are_refused():
    index = np.zeros((1, 1, 1, 1), "uint8")
    with pytest.raises(ValueError, match=r"index has shape \(1, 1, 1, 1\); pooling gives \(1, 1, 2, 2\)"):
        perform(MaxPool2dChosen(Pooling(Window((2, 2), (2, 2)))), np.ones((1, 1, 4, 4)), index)
    with pytest.raises(ValueError, match=r"gy has shape \(1, 1, 2, 2\); pooling gives \(1, 1, 1, 1\)"):
        perform(AvgPool2dGradient(Pooling(Window((2, 2), (2, 2)))), np.ones((1, 1, 2, 2)), 2, 2)
