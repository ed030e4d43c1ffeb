"""Transposed convolution: the transpose of a convolution, with sizes that are known beforehand."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import check_shapes, convolutions, normal, perform
from support.slow import slow
from synk.compile import array_mode
from synk.compile.tables import flops_of
from synk.ops import conv_transpose2d
from synk.ops.conv_transpose import ConvTranspose2d
from synk.ops.convolve import Conv2d
from synk.ops.kernels.window import Convolution, Window, lengths

MODES = ["FAST_COMPILE", array_mode()]


def evaluate(variable, mode="FAST_COMPILE"):
    return pytensor.function([], variable, mode=mode)()


def test_each_pixel_is_spread_over_a_window():
    x = np.array([[1.0, 10], [100, 0]]).reshape(1, 1, 2, 2)
    w = np.array([[1.0, 2], [3, 4]]).reshape(1, 1, 2, 2)
    expected = [[1, 12, 20], [103, 234, 40], [300, 400, 0]]
    np.testing.assert_array_equal(evaluate(conv_transpose2d(x, w))[0, 0], expected)
    np.testing.assert_array_equal(evaluate(conv_transpose2d(x, w, [5.0]))[0, 0], np.add(expected, 5))
    apart = evaluate(conv_transpose2d(x, w, stride=2, padding=((1, 0), (0, 1))))
    np.testing.assert_array_equal(apart[0, 0], [[3, 4, 30], [100, 200, 0], [300, 400, 0]])
    longer = evaluate(conv_transpose2d(x, w, stride=(3, 2), output_padding=(1, 0)))
    column = [1, 3, 0, 100, 300, 0]
    np.testing.assert_array_equal(longer[0, 0, :, 0], column)
    assert longer.shape == (1, 1, 6, 4)


@st.composite
def transposed(draw):
    """Return the Op whose result is the image of a convolution, and the shapes of the image, w and x."""
    convolution, image, w, x = draw(convolutions())
    window = convolution.window
    sides = zip(
        lengths(convolution.layout, image)[2:], lengths(convolution.layout, x)[2:], w[2:], strict=True
    )
    extra = tuple(
        side - window.covered(k, outputs, places) for k, (side, outputs, places) in enumerate(sides)
    )
    return ConvTranspose2d(convolution, extra), image, w, x


@settings(max_examples=40)
@given(transposed())
def test_it_is_the_transpose_of_the_convolution(case):
    """For each size that the convolution takes to the size of x, there is an output_padding."""
    op, image, w_shape, x_shape = case
    x, w, other = normal(x_shape), normal(w_shape, 1), normal(image, 2)
    (y,) = perform(op, x, w)
    assert y.shape == image
    (there,) = perform(Conv2d(op.convolution), other, w)
    np.testing.assert_allclose((y * other).sum(), (x * there).sum(), rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(transposed())
def test_shapes(case):
    op, _, w, x = case
    check_shapes(op, normal(x), normal(w, 1))


@settings(max_examples=10)
@given(transposed())
def test_both_layouts_compute_the_same(case):
    op, _, w_shape, x_shape = case
    x, w = normal(x_shape), normal(w_shape, 1)
    other = op.with_layout("NHWC" if op.layout == "NCHW" else "NCHW")
    moved = (0, 2, 3, 1) if op.layout == "NCHW" else (0, 3, 1, 2)
    (y,), (there,) = perform(op, x, w), perform(other, x.transpose(moved).copy(), w)
    np.testing.assert_allclose(there, y.transpose(moved), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-5), slow("float64", 1e-11)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("n_images", [0, 1, 3])
def test_kernels_have_the_numbers_of_the_definition(dtype, tolerance, n_images):
    window = Window(None, (2, 3), ((1, 0), (0, 2)), (1, 2))
    op = ConvTranspose2d(Convolution(window, 2), (1, 2))
    x, w, bias = normal((n_images, 4, 5, 3), 0, dtype), normal((4, 3, 3, 2), 1, dtype), normal(6, 2, dtype)
    inputs = [pt.tensor(dtype=dtype, shape=(None,) * v.ndim) for v in (x, w, bias)]
    y = op(*inputs[:2]) + inputs[2].dimshuffle("x", 0, "x", "x")
    outputs = [y, *pytensor.grad((y**2).sum(), inputs)]
    expected = pytensor.function(inputs, outputs, mode="FAST_COMPILE")(x, w, bias)
    found = pytensor.function(inputs, outputs, mode=array_mode())(x, w, bias)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max(initial=1))


def test_sizes_are_known_where_those_of_x_are():
    x = pt.tensor("x", dtype="float32", shape=(None, 4, 8, None))
    w = pytensor.shared(normal((4, 3, 2, 2), dtype="float32"), shape=(4, 3, 2, 2))
    y = conv_transpose2d(x, w, stride=2)
    assert y.type.shape == (None, 3, 16, None)
    assert pytensor.grad(y.sum(), w).type.shape == (4, 3, 2, 2)
    function = pytensor.function([x], y.shape, mode=array_mode())
    assert not any(isinstance(node.op, ConvTranspose2d) for node in function.maker.fgraph.apply_nodes)
    assert function(normal((3, 4, 8, 5), dtype="float32")).tolist() == [3, 3, 16, 10]


def test_operations_are_counted():
    """Two for each product: with 2 x 3 weights for 4 channels out of 2 in each group, 12 products a pixel."""
    x, w = normal((2, 6, 5, 5)), normal((6, 2, 2, 3), 1)
    op = ConvTranspose2d(Convolution(Window(), 2))
    assert flops_of(op)([x, w], perform(op, x, w)) == 2 * 12 * x.size


X, W = normal((2, 4, 5, 6)), normal((4, 3, 3, 3), 1)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"stride": 0}, ValueError, r"stride=\(0, 0\) must be 1 or more"),
        ({"stride": 1.5}, TypeError, "stride=1.5 must be an int or a pair of ints"),
        ({"dilation": (1, 0)}, ValueError, r"dilation=\(1, 0\) must be 1 or more"),
        ({"padding": -1}, ValueError, "must not be negative"),
        ({"padding": "same"}, ValueError, "padding='same' must be numbers"),
        ({"padding": 4}, ValueError, r"height of 5 pixels.* padding \(4, 4\) leave -1 pixels; take larger"),
        ({"output_padding": 1}, ValueError, r"output_padding=\(1, 1\) must be .* less than stride=\(1, 1\)"),
        ({"output_padding": -1, "stride": 2}, ValueError, r"output_padding=\(-1, -1\) must be 0 or more"),
        ({"output_padding": (2, 0), "stride": (2, 3)}, ValueError, r"less than stride=\(2, 3\)"),
        ({"output_padding": 0.5}, TypeError, "output_padding=0.5 must be an int"),
        ({"groups": 3}, ValueError, "groups=3 does not divide 4 channels; choose a divisor"),
        ({"groups": 0}, ValueError, "groups=0 must be 1 or more"),
        ({"groups": 2.0}, TypeError, "groups=2.0 must be an int"),
        ({"bias": [1.0]}, ValueError, "bias has 1 elements; give it one per output channel of w, 3"),
        ({"bias": np.ones(3, "float32")}, TypeError, "bias must be float64, not float32"),
        ({"x": X[:, :3]}, ValueError, r"the image has 3 channels, but w of shape \(4, 3, 3, 3\) is for 4"),
        ({"x": X.astype("float32")}, TypeError, "x is float32, w is float64: give all one dtype"),
        ({"x": X.astype("int64")}, TypeError, "x must be float32 or float64, not int64"),
        ({"x": X[0]}, ValueError, "x must have 4 axes, not 3"),
    ],
)
def test_arguments_that_are_refused(keywords, error, message):
    with pytest.raises(error, match=f"^conv_transpose2d: .*{message}"):
        conv_transpose2d(**{"x": X, "w": W, **keywords})


@pytest.mark.parametrize("mode", MODES)
def test_arrays_that_do_not_go_together_when_run(mode):
    x, w, b = pt.tensor4(dtype="float64"), pt.tensor4(dtype="float64"), pt.dvector()
    y = conv_transpose2d(x, w, b, padding=2)
    function = pytensor.function([x, w, b], y, mode=mode)
    assert function(X, W, np.zeros(3)).shape == (2, 3, 3, 4)
    for values, message in [
        ((X[:, :3], W, np.zeros(3)), "conv_transpose2d: the image has 3 channels"),
        ((X[:, :, :2], W, np.zeros(3)), "conv_transpose2d: a height of 2 pixels.* leave 0 pixels"),
        ((X, W, np.zeros(1)), "conv_transpose2d: give bias one element per output channel"),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            function(*values)
        if mode in MODES[1:]:
            assert "conv_transpose2d(x, w, b, padding=2)" in "".join(error.value.__notes__)


def test_an_op_is_a_value():
    op = ConvTranspose2d(Convolution(Window(None, (2, 2))), (1, 0))
    assert op == ConvTranspose2d(Convolution(Window(None, (2, 2))), (1, 0)) != op.with_layout("NHWC")
    assert op != ConvTranspose2d(Convolution(Window(None, (2, 2))), (1, 1))
