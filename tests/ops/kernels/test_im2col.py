"""Convolutions by matrix products, against the definitions of their Ops."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.cases.images import check_entry, convolutions, normal
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.kernels import im2col
from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.window import LAYOUTS, Convolution, Window, lengths

# Bytes of columns at a time: a row of windows, a few, all.
budgets = st.sampled_from([(1, 1), (600, 600), (4000, 9000), im2col.BYTES])

POINTWISE = Convolution(Window(), 2, "NHWC"), (3, 4, 5, 4), (6, 2, 1, 1), (3, 4, 5, 6)
# The next window would start beyond the padding, and the first lies wholly in it.
AROUND = Convolution(Window(None, (3, 3), ((3, 2), (4, 4)))), (2, 1, 5, 6), (2, 1, 2, 2), (2, 2, 3, 5)


@settings(max_examples=40)
@given(convolutions(), budgets, st.booleans(), st.booleans())
@example(POINTWISE, im2col.BYTES, True, True)
@example(AROUND, im2col.BYTES, False, True)
def test_forward(case, budget, relu, has_bias):
    convolution, x, w, _ = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(im2col, "BYTES", budget)
        bias = [normal(w[0], 2)] if has_bias else []
        check_entry(Conv2d(convolution, relu), normal(x, 0), normal(w, 1), *bias)


@pytest.mark.slow
@settings(max_examples=40)
@given(convolutions(), budgets)
@example(POINTWISE, im2col.BYTES)
@example(AROUND, im2col.BYTES)
def test_gradients(case, budget):
    convolution, x, w, y = case
    sides = lengths(convolution.layout, x)[2:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(im2col, "BYTES", budget)
        check_entry(Conv2dInputGradient(convolution), normal(y, 0), normal(w, 1), *sides)
        check_entry(Conv2dWeightGradient(convolution), normal(x, 0), normal(y, 1), *w[2:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_twice_and_from_other_strides(layout):
    convolution = Convolution(Window(None, (2, 1), ((1, 1), (1, 0))), 1, layout)
    x, w = normal((4, 6, 6, 6), dtype="float32"), normal((5, 6, 3, 3), dtype="float32")
    forward = Im2col(np).forward(convolution, False, False)
    y = forward(x, w)
    np.testing.assert_array_equal(forward(x, w), y)
    scattered = np.repeat(x, 2, axis=3)[..., ::2]
    assert not scattered.flags.c_contiguous
    np.testing.assert_array_equal(forward(scattered, w), y)


def test_relu_keeps_nan():
    x = np.array([-1.0, np.nan, 2.0]).reshape(1, 1, 1, 3)
    y = Im2col(np).forward(Convolution(Window()), True, False)(x, np.ones((1, 1, 1, 1)))
    np.testing.assert_array_equal(y.ravel(), [0, np.nan, 2])


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda k, c, x, w, y: k.forward(c, False, False)(x, w[:, :1]), "the image has 2 channels"),
        (lambda k, c, x, w, y: k.forward(c, False, True)(x, w, w[0, :, 0, 0]), r"bias has shape \(2,\)"),
        (lambda k, c, x, w, y: k.input_gradient(c)(y, w, 5, 6), r"gy has shape \(2, 3, 3, 3\)"),
        (lambda k, c, x, w, y: k.weight_gradient(c)(x, y, 3, 2), r"gy has shape \(2, 3, 3, 3\)"),
    ],
)
def test_shapes_that_do_not_go_together(run, message):
    x, w, y = normal((2, 2, 5, 5)), normal((3, 2, 3, 3)), normal((2, 3, 3, 3))
    with pytest.raises(ValueError, match=message):
        run(Im2col(np), Convolution(Window()), x, w, y)
