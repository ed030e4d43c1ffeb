"""Lines are images of one row."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.images import normal
from support.slow import slow
from synk.compile import array_mode
from synk.ops import avg_pool1d, conv1d, conv_transpose1d, max_pool1d

X, W, B = normal((2, 4, 9)), normal((6, 2, 3), 1), normal(6, 2)


def evaluate(variable, mode="FAST_COMPILE"):
    return pytensor.function([], variable, mode=mode)()


@pytest.mark.parametrize("mode", [slow("FAST_COMPILE"), array_mode()])
def test_a_convolution_is_a_sum_over_windows(mode):
    y = evaluate(conv1d(X, W, B, stride=2, padding=(1, 3), dilation=2, groups=2), mode)
    line = np.pad(X, ((0, 0), (0, 0), (1, 3)))
    expected = np.zeros((2, 6, 5))
    for n, o, i in np.ndindex(*expected.shape):
        channels = slice(2 * (o // 3), 2 * (o // 3) + 2)
        expected[n, o, i] = (line[n, channels, 2 * i : 2 * i + 5 : 2] * W[o]).sum() + B[o]
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_a_transposed_convolution_is_the_transpose():
    x, w = pt.tensor3(dtype="float64"), pt.tensor3(dtype="float64")
    y = conv_transpose1d(x, w, stride=3, padding=1, output_padding=2, groups=2)
    back = conv1d(y, w, stride=3, padding=1, groups=2)
    first, second = pytensor.function([x, w], [y, back], mode=array_mode())(X, normal((4, 3, 3), 1))
    assert (first.shape, second.shape) == ((2, 6, 27), (2, 4, 9))
    np.testing.assert_allclose((first**2).sum(), (X * second).sum(), rtol=1e-12)


def test_pooling_takes_windows():
    windows = X[:, :, :8].reshape(2, 4, 4, 2)
    np.testing.assert_array_equal(evaluate(max_pool1d(X, 2)), windows.max(3))
    np.testing.assert_allclose(evaluate(avg_pool1d(X, 2)), windows.mean(3))
    edge = evaluate(avg_pool1d(X, 3, stride=1, padding=(1, 0), count_padding=False))
    np.testing.assert_allclose(edge[:, :, 0], X[:, :, :2].mean(2))
    assert max_pool1d(X, 3, stride=1, padding=1).type.shape == X.shape


def test_gradients_are_those_of_one_row():
    x, w = pt.tensor3(dtype="float64"), pt.tensor(dtype="float64", shape=W.shape)
    y = max_pool1d(conv1d(x, w, padding="same", groups=2), 2)
    loss = (y**2).sum()
    function = pytensor.function([x, w], [loss, *pytensor.grad(loss, [x, w])], mode=array_mode())
    known = X, W
    direction = normal(X.shape, 4), normal(W.shape, 5)
    _, *gradients = function(*known)
    ahead, back = (
        function(*(v + s * d for v, d in zip(known, direction, strict=True)))[0] for s in (1e-6, -1e-6)
    )
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    np.testing.assert_allclose(slope, (ahead - back) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: conv1d(X, W, stride=0, groups=2), ValueError, "^conv1d: stride=0 must be 1 or more"),
        (lambda: conv1d(X, W, stride=(1, 1)), TypeError, r"^conv1d: stride=\(1, 1\) must be an int"),
        (lambda: conv1d(X, W, padding=1.5), TypeError, "^conv1d: padding=1.5 must be an int or a pair"),
        (lambda: conv1d(X, W), ValueError, "^conv1d: the image has 4 channels; weights for 2"),
        (lambda: conv1d(X[0], W), ValueError, "^conv1d: x must have 3 axes, not 2"),
        (lambda: max_pool1d(X, 0), ValueError, "^max_pool1d: size=0 must be 1 or more"),
        (
            lambda: avg_pool1d(X, 12),
            ValueError,
            "^avg_pool1d: a window of 12 places, .*does not fit in a width of 9",
        ),
        (
            lambda: conv_transpose1d(X, W, output_padding=-1),
            ValueError,
            "^conv_transpose1d: output_padding=-1 must be 0 or more",
        ),
    ],
)
def test_arguments_that_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
