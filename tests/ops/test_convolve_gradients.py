"""Gradients of convolutions: by differences, in compiled functions, and born in a flat vector."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import check_shapes, convolutions, normal, numeric_gradient, perform
from synk.compile import ArrayLinker, array_mode
from synk.ops import conv2d
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.kernels.window import Convolution, Window, lengths


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
def test_shapes(case):
    convolution, x, w, y = case
    sides = lengths(convolution.layout, x)[2:]
    check_shapes(Conv2dInputGradient(convolution), normal(y), normal(w, 1), *sides)
    check_shapes(Conv2dWeightGradient(convolution), normal(x), normal(y, 1), *w[2:])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("relu", [False, True])
def test_gradient_of_a_loss(layout, relu):
    convolution = Convolution(Window(None, (2, 1), ((1, 0), (0, 2)), (1, 2)), 2, layout)
    x, w, bias = normal((2, 4, 4, 4)), normal((4, 2, 2, 2), 1), normal(4, 2)
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


@pytest.mark.parametrize("known", [True, False])
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
