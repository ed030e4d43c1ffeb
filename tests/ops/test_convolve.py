"""Convolution as a symbolic Op."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import check_shapes, convolutions, normal, numeric_gradient, perform
from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.tables import flops_of
from synk.ops import conv2d
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.kernels.window import Convolution, Window, lengths, ordered


def evaluate(variable, mode="FAST_COMPILE"):
    return pytensor.function([], variable, mode=mode)()


def test_a_convolution_by_hand():
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    w = np.array([[1.0, 0], [0, -10]]).reshape(1, 1, 2, 2)
    expected = [[0 - 40, 1 - 50], [3 - 70, 4 - 80]]
    np.testing.assert_array_equal(evaluate(conv2d(x, w))[0, 0], expected)
    np.testing.assert_array_equal(evaluate(conv2d(x, w, [100.0]))[0, 0], np.add(expected, 100))
    padded = evaluate(conv2d(x, w, padding=((1, 0), (0, 0))))
    np.testing.assert_array_equal(padded[0, 0], [[-10, -20], *expected])


def test_operations_are_counted():
    """Two for each product: with 3 x 3 weights of 4 channels in 2 groups, 18 products a result."""
    x, w = pt.tensor4("x"), pt.tensor4("w")
    y = conv2d(x, w, groups=2)
    gradients = [node.owner for node in pt.grad(y.sum(), [x, w])]
    shapes = {"x": (2, 4, 5, 6), "w": (6, 2, 3, 3), "y": (2, 6, 3, 4)}
    arrays = {name: np.zeros(shape) for name, shape in shapes.items()}
    calls = [(y.owner, "xw", "y"), (gradients[0], "yw", "x"), (gradients[1], "xy", "w")]
    for node, inputs, result in calls:
        count = flops_of(node.op)
        assert count([arrays[name] for name in inputs], [arrays[result]]) == 2 * 18 * arrays["y"].size


@given(convolutions(), st.booleans())
def test_definition_against_loops(case, relu):
    convolution, shape, weights, outputs = case
    x, w, bias = normal(shape), normal(weights, 1), normal(weights[0], 2)
    window, groups = convolution.window, convolution.groups
    last = convolution.layout == "NHWC"
    image = np.pad(x.transpose(0, 3, 1, 2) if last else x, ((0, 0), (0, 0), *window.padding))
    expected = np.zeros([outputs[k] for k in ((0, 3, 1, 2) if last else range(4))])
    (sh, sw), (dh, dw) = window.stride, window.dilation
    for n, o, i, j in np.ndindex(*expected.shape):
        group = o // (weights[0] // groups)
        channels = slice(group * weights[1], (group + 1) * weights[1])
        seen = image[n, channels, i * sh :: dh, j * sw :: dw][:, : weights[2], : weights[3]]
        expected[n, o, i, j] = (seen * w[o]).sum() + bias[o]
    expected = np.maximum(expected, 0) if relu else expected
    (y,) = perform(Conv2d(convolution, relu), x, w, bias)
    y = y.transpose(0, 3, 1, 2) if last else y
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=15)
@given(convolutions())
def test_shapes(case):
    convolution, x, w, _ = case
    check_shapes(Conv2d(convolution), normal(x), normal(w, 1))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_keeps_the_size(size, dilation):
    x, w = normal((2, 3, 7, 6)), normal((4, 3, *size))
    y = conv2d(x, w, padding="same", dilation=dilation)
    assert y.type.shape == (2, 4, 7, 6)
    assert evaluate(y).shape == (2, 4, 7, 6)
    centre = np.zeros((1, 1, *size))
    centre[0, 0, (size[0] - 1) // 2, (size[1] - 1) // 2] = 1
    kept = conv2d(x[:, :1], centre, padding="same", dilation=dilation)
    if dilation == 1:
        np.testing.assert_array_equal(evaluate(kept), x[:, :1])


def test_valid_has_no_padding():
    x, w = normal((2, 3, 7, 6)), normal((4, 3, 2, 2))
    assert conv2d(x, w, padding="valid").type.shape == (2, 4, 6, 5)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"stride": 0}, ValueError, r"stride=\(0, 0\) must be 1 or more"),
        ({"stride": 1.5}, TypeError, "stride=1.5 must be an int or a pair of ints"),
        ({"dilation": (1, 0)}, ValueError, r"dilation=\(1, 0\) must be 1 or more"),
        ({"padding": -1}, ValueError, "must not be negative; crop the image instead"),
        ({"padding": "full"}, ValueError, 'padding=\'full\' is unknown; give numbers, "valid" or "same"'),
        ({"padding": "same", "stride": 2}, ValueError, r"stride=\(2, 2\) cannot keep the size"),
        ({"groups": 2}, ValueError, "groups=2 does not divide 3 input channels"),
        ({"groups": 0}, ValueError, "groups=0 must be 1 or more"),
        ({"dilation": 4}, ValueError, "9 pixels, does not fit in a height of 8 pixels"),
    ],
)
def test_arguments_that_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        conv2d(normal((2, 3, 8, 8)), normal((4, 3, 3, 3)), **keywords)


def test_same_needs_the_size_of_the_weights():
    x, w = pt.tensor4("x", dtype="float32"), pt.tensor4("w", dtype="float32")
    with pytest.raises(ValueError, match=r"needs the size of w, known here: \(None, None\)"):
        conv2d(x, w, padding="same")


def test_arrays_that_do_not_go_together():
    x, w = normal((2, 3, 8, 8)), normal((4, 3, 3, 3))
    with pytest.raises(ValueError, match="the image has 3 channels; weights for 2"):
        conv2d(x, w[:, :2])
    with pytest.raises(ValueError, match="bias has 3 elements; give it one per output channel of w, 4"):
        conv2d(x, w, np.zeros(3))
    with pytest.raises(TypeError, match=r"x is float64, w is float32: give all one dtype"):
        conv2d(x, w.astype("float32"))


@pytest.mark.parametrize("mode", ["FAST_COMPILE", array_mode()])
def test_shapes_that_do_not_go_together_when_run(mode):
    x, w, b = pt.tensor4(dtype="float64"), pt.tensor4(dtype="float64"), pt.dvector()
    function = pytensor.function([x, w, b], conv2d(x, w, b), mode=mode)
    with pytest.raises(ValueError, match="the image has 2 channels"):
        function(normal((1, 2, 4, 4)), normal((4, 3, 3, 3)), np.zeros(4))
    with pytest.raises(ValueError, match="bias has"):
        function(normal((1, 3, 4, 4)), normal((4, 3, 3, 3)), np.zeros(3))


def test_shape_of_a_convolution_does_not_compute_it():
    x, w = pt.tensor4(dtype="float64"), pt.tensor4(dtype="float64")
    y = conv2d(x, w, stride=2, padding=1)
    function = pytensor.function([x, w], y.shape, mode=array_mode())
    assert not any(isinstance(node.op, Conv2d) for node in function.maker.fgraph.apply_nodes)
    assert function(normal((3, 2, 7, 8)), normal((5, 2, 3, 3))).tolist() == [3, 5, 4, 4]


# --- gradients ------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(convolutions())
def test_definitions_by_differences(case):
    convolution, x_shape, w_shape, y_shape = case
    x, w, gy = normal(x_shape), normal(w_shape, 1), normal(y_shape, 2)
    op = Conv2d(convolution)
    (gx,) = perform(Conv2dInputGradient(convolution), gy, w, *lengths(convolution.layout, x_shape)[2:])
    (gw,) = perform(Conv2dWeightGradient(convolution), x, gy, *w_shape[2:])
    # The result is linear in x and in w: a direction for each tells as much as all differences.
    dx, dw = normal(x_shape, 3), normal(w_shape, 4)
    np.testing.assert_allclose((gx * dx).sum(), (gy * perform(op, dx, w)[0]).sum(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((gw * dw).sum(), (gy * perform(op, x, dw)[0]).sum(), rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(convolutions())
def test_shapes_of_gradients(case):
    convolution, x, w, y = case
    sides = lengths(convolution.layout, x)[2:]
    check_shapes(Conv2dInputGradient(convolution), normal(y), normal(w, 1), *sides)
    check_shapes(Conv2dWeightGradient(convolution), normal(x), normal(y, 1), *w[2:])


@pytest.mark.parametrize(
    ("layout", "relu"), [("NCHW", True), ("NHWC", False), slow("NCHW", False), slow("NHWC", True)]
)
def test_gradient_of_a_loss(layout, relu):
    convolution = Convolution(Window(None, (2, 1), ((1, 0), (0, 2)), (1, 2)), 2, layout)
    x, w, bias = normal(ordered(layout, 2, 4, 3, 3)), normal((4, 2, 2, 2), 1), normal(4, 2)
    values = [x, w, bias]
    inputs = [pt.tensor(dtype="float64", shape=(None,) * v.ndim) for v in values]
    loss = (Conv2d(convolution, relu)(*inputs) ** 3).sum()
    gradients = pytensor.grad(loss, inputs)
    for mode in ("FAST_COMPILE", array_mode()):
        function = pytensor.function(inputs, [loss, *gradients], mode=mode)
        _, *results = function(*values)
        for k, result in enumerate(results):

            def loss_of(value, k=k, function=function):
                return function(*values[:k], value, *values[k + 1 :])[0]

            np.testing.assert_allclose(result, numeric_gradient(loss_of, values[k]), rtol=1e-6, atol=1e-6)


def test_gradient_needs_no_array_whose_gradient_it_is():
    x, w = pt.tensor4("x", dtype="float32"), pt.tensor4("w", dtype="float32")
    loss = conv2d(x, w).sum()
    gx, gw = pytensor.grad(loss, [x, w])
    mode = array_mode().excluding("channels_last")  # which puts a copy of the input between
    for gradient, kept in ((gx, w), (gw, x)):
        function = pytensor.function([x, w], gradient, mode=mode)
        (node,) = [n for n in function.maker.fgraph.apply_nodes if "Gradient" in type(n.op).__name__]
        images = [v for v in node.inputs if v.type.ndim == 4 and v.owner is None]
        assert [v.name for v in images] == [kept.name]


def test_weights_tell_what_images_do_not():
    x = pt.tensor4("x", dtype="float32")
    w = pytensor.shared(normal((4, 3, 2, 2), dtype="float32"), shape=(4, 3, 2, 2))
    assert pytensor.grad(conv2d(x, w).sum(), w).type.shape == (4, 3, 2, 2)
    assert pytensor.grad(conv2d(x, w).sum(), x).type.shape == (None, 3, None, None)


@pytest.mark.parametrize("known", [True, slow(False)])
def test_gradients_are_born_in_the_flat_vector(known):
    written = []

    def observe(node, implementation):
        def run(*inputs, **keywords):
            if isinstance(node.op, Conv2dWeightGradient):
                written.append(keywords.get("out"))
            return implementation(*inputs, **keywords)

        return run

    x = pt.tensor("x", dtype="float32", shape=(None, 3, 8, 8) if known else (None,) * 4)
    values = [normal((4, 3, 3, 3), 1, "float32"), normal((5, 4, 3, 3), 2, "float32")]
    first, second = (pytensor.shared(v, shape=v.shape) for v in values)
    y = conv2d(conv2d(x, first, padding=1) ** 2, second, stride=2)
    gradients = pytensor.grad((y**2).sum(), [first, second])
    flat = pytensor.shared(np.zeros(sum(v.size for v in values), "float32"))
    before = flat.get_value(borrow=True)
    joined = pt.concatenate([g.reshape((-1,)) for g in gradients])
    function = pytensor.function(
        [x], [], updates={flat: joined}, mode=array_mode(ArrayLinker(observe=observe))
    )
    function(normal((2, 3, 8, 8), 3, "float32"))
    assert flat.get_value(borrow=True) is before
    separate = pytensor.function([x], gradients, mode="FAST_COMPILE")(normal((2, 3, 8, 8), 3, "float32"))
    expected = np.concatenate([g.ravel() for g in separate])
    np.testing.assert_allclose(before, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert len(written) == 2
    assert all(np.shares_memory(out, before) for out in written)


@settings(max_examples=10)
@given(st.integers(1, 3), st.sampled_from(["NCHW", "NHWC"]))
def test_gradients_of_no_images(groups, layout):
    convolution = Convolution(Window(None, (2, 2)), groups, layout)
    x = np.zeros((0, 2 * groups, 5, 5) if layout == "NCHW" else (0, 5, 5, 2 * groups))
    w = normal((groups, 2, 3, 3))
    (y,) = perform(Conv2d(convolution), x, w)
    assert y.size == 0
    (gw,) = perform(Conv2dWeightGradient(convolution), x, y, 3, 3)
    np.testing.assert_array_equal(gw, np.zeros(w.shape))


def test_gradients_of_another_shape_are_refused():
    x, w, gy = normal((1, 2, 5, 5)), normal((3, 2, 3, 3)), normal((1, 3, 2, 3))
    convolution = Convolution(Window())
    with pytest.raises(ValueError, match=r"gy has shape \(1, 3, 2, 3\); the convolution gives"):
        perform(Conv2dInputGradient(convolution), gy, w, 5, 5)
    with pytest.raises(ValueError, match=r"gy has shape \(1, 3, 2, 3\); the convolution gives"):
        perform(Conv2dWeightGradient(convolution), x, gy, 3, 3)
