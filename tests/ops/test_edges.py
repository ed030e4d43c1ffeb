"""Edges of images taken away or added."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.images import check_entry, check_shapes, normal
from synk.compile import array_mode
from synk.ops import crop, pad
from synk.ops.edges import Crop2d, Pad2d

MODES = ["FAST_COMPILE", array_mode()]
X = normal((2, 3, 5, 6))


def evaluate(variable, mode="FAST_COMPILE"):
    return pytensor.function([], variable, mode=mode)()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("edges", [0, 1, (2, 0), ((0, 1), (2, 1))])
def test_pixels_are_added_and_taken_away(edges, mode):
    (top, bottom), (left, right) = (
        edges
        if isinstance(edges, tuple) and isinstance(edges[0], tuple)
        else [(n, n) for n in (edges if isinstance(edges, tuple) else (edges, edges))]
    )
    wider = np.pad(X, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=7)
    np.testing.assert_array_equal(evaluate(pad(X, edges, value=7), mode), wider)
    np.testing.assert_array_equal(evaluate(crop(X, edges), mode), X[:, :, top : 5 - bottom, left : 6 - right])


def test_a_size_is_cut_from_the_middle():
    np.testing.assert_array_equal(evaluate(crop(X, size=(2, 4))), X[:, :, 1:3, 1:5])
    np.testing.assert_array_equal(evaluate(crop(X, size=5)), X[:, :, :, :5])
    other = pt.tensor4("other", dtype="float64")
    function = pytensor.function([other], crop(X, size=other), mode=array_mode())
    np.testing.assert_array_equal(function(np.zeros((1, 1, 3, 2))), X[:, :, 1:4, 2:4])
    assert crop(X, size=pt.zeros((1, 1, 3, 2))).type.shape == (2, 3, 3, 2)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_entries_and_shapes(layout):
    for op, lengths in ((Crop2d(layout), (1, 0, 2, 3)), (Pad2d(2.5, layout), (1, 0, 7, 8))):
        check_entry(op, X, *lengths)
        check_shapes(op, X, *lengths)
        assert op.with_layout("NHWC").with_layout(layout) == op


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode):
    x = pt.tensor4("x", dtype="float64")
    for y, expected in (
        (pad(x, ((1, 0), (0, 2)), value=3.0), X * 2),
        (crop(x, ((1, 0), (0, 2))), np.pad(2 * X[:, :, 1:, :4], ((0, 0), (0, 0), (1, 0), (0, 2)))),
    ):
        function = pytensor.function([x], pytensor.grad((y**2).sum(), x), mode=mode)
        np.testing.assert_allclose(function(X), expected)


def test_what_is_known_of_the_size():
    x = pt.tensor("x", dtype="float32", shape=(None, 3, 8, None))
    assert pad(x, 1).type.shape == (None, 3, 10, None)
    assert crop(x, 1).type.shape == (None, 3, 6, None)
    assert crop(x, size=4).type.shape == (None, 3, 4, 4)


@pytest.mark.parametrize(
    ("function", "keywords", "error", "message"),
    [
        (pad, {"padding": -1}, ValueError, r"^pad: padding=.* must not be negative; crop takes pixels away"),
        (pad, {"padding": 1.5}, TypeError, "^pad: padding=1.5 must be an int or a pair of ints"),
        (crop, {}, ValueError, "^crop: give edges or a size, one of them"),
        (crop, {"edges": 1, "size": 1}, ValueError, "^crop: give edges or a size, one of them"),
        (crop, {"edges": (3, 0)}, ValueError, "^crop: -1 pixels from pixel 3 on .* height of 5 pixels; take"),
        (crop, {"edges": 1.5}, TypeError, "^crop: edges=1.5 must be an int or a pair of ints"),
        (crop, {"edges": -1}, ValueError, "^crop: edges=.* must not be negative"),
        (crop, {"size": 6}, ValueError, "^crop: 6 pixels from pixel -1 on are not in a height of 5 pixels"),
        (crop, {"size": "5"}, TypeError, "^crop: size='5' must be an int"),
    ],
)
def test_arguments_that_are_refused(function, keywords, error, message):
    with pytest.raises(error, match=message):
        function(X, **keywords)


@pytest.mark.parametrize("mode", MODES)
def test_images_that_do_not_fit_when_run(mode):
    x, y = pt.tensor4("x", dtype="float64"), pt.tensor4("y", dtype="float64")
    function = pytensor.function([x, y], crop(x, size=y), mode=mode)
    with pytest.raises(ValueError, match="crop: 7 pixels from pixel -1 on are not in a width of 6 pixels"):
        function(X, np.zeros((2, 3, 5, 7)))
