"""Convolution and pooling against torch: the same numbers in float64, no more error than its in float32."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings

from support.cases.images import convolutions, normal, poolings
from synk.compile import array_mode
from synk.ops.convolve import Conv2d
from synk.ops.kernels.window import Convolution, Window
from synk.ops.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d

torch = pytest.importorskip("torch", reason="make torch-suite has it")
functional = torch.nn.functional


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ours(op, values, weights_of_loss):
    """Return the result, and the gradients of its product with given weights."""
    inputs = [pt.tensor(dtype=v.dtype, shape=v.shape) for v in values]
    result = op.make_node(*inputs).outputs[0]
    gradients = pytensor.grad((result * weights_of_loss).sum(), inputs)
    function = pytensor.function(inputs, [result, *gradients], mode=array_mode())
    return function(*values)


def torchs(function, values, weights_of_loss):
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    result = function(*tensors)
    (result * torch.tensor(weights_of_loss)).sum().backward()
    return [result.detach().numpy(), *[t.grad.numpy() for t in tensors]]


def last(image):
    return np.ascontiguousarray(np.transpose(image, (0, 2, 3, 1)))


def in_torch(convolution, relu=False, layout=torch.contiguous_format):
    window = convolution.window
    (top, bottom), (left, right) = window.padding

    def run(x, w, *bias):
        # Padding of its own has torch take another way, with other errors: only where it cannot do it itself.
        own = (top, left) if (top, left) == (bottom, right) else 0
        x = x if own else functional.pad(x, (left, right, top, bottom))
        x, w = x.to(memory_format=layout), w.to(memory_format=layout)
        steps = {"stride": window.stride, "dilation": window.dilation, "groups": convolution.groups}
        y = functional.conv2d(x, w, *bias, padding=own, **steps)
        return functional.relu(y) if relu else y

    return run


@settings(max_examples=20, deadline=None)
@given(convolutions())
def test_convolutions_in_float64(case):
    convolution, x_shape, w_shape, y_shape = case
    if 0 in x_shape:
        return
    is_last = convolution.layout == "NHWC"
    x, w, bias, g = normal(x_shape), normal(w_shape, 1), normal(w_shape[0], 2), normal(y_shape, 3)
    results = ours(Conv2d(convolution, relu=True), [x, w, bias], g)
    for k in (0, 1) if is_last else ():
        results[k] = results[k].transpose(0, 3, 1, 2)
    if is_last:
        x, g = x.transpose(0, 3, 1, 2), g.transpose(0, 3, 1, 2)
    for result, expected in zip(results, torchs(in_torch(convolution, True), [x, w, bias], g), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(poolings())
def test_pooling_in_float64(case):
    pooling, shape, outputs = case
    padding = pooling.window.padding
    # Torch pads both ends alike, by half a window at most, and has no images of which none are there.
    alike = all(a == b and 2 * a <= k for (a, b), k in zip(padding, pooling.size, strict=True))
    if 0 in shape or not alike:
        return
    x, g, is_last = normal(shape), normal(outputs, 1), pooling.layout == "NHWC"
    ahead = padding[0][0], padding[1][0]
    size, stride = pooling.size, pooling.window.stride
    cases = [(MaxPool2d(pooling), lambda x: functional.max_pool2d(x, size, stride, ahead))]
    for count in (True, False):
        peer = lambda x, count=count: functional.avg_pool2d(x, size, stride, ahead, False, count)  # noqa: E731
        cases.append((AvgPool2d(pooling, count), peer))
    for op, function in cases:
        results = ours(op, [x], g)
        values = [x, g]
        if is_last:
            results = [r.transpose(0, 3, 1, 2) for r in results]
            values = [v.transpose(0, 3, 1, 2) for v in values]
        for result, expected in zip(results, torchs(function, values[:1], values[1]), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)


def test_global_mean_in_float64():
    x, g = normal((2, 5, 4, 3)), normal((2, 5), 1)
    results = ours(GlobalAvgPool2d(), [x], g)
    for result, expected in zip(results, torchs(lambda x: x.mean((2, 3)), [x], g), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)


# torch computes by other libraries in its two layouts, whose errors differ up to fivefold. That of
# channels-last is ours, to the digit, but for products of 1 x 1, whose sums are cut into other pieces. A
# product in half precision, or a sum of 50,000 terms one by one, would be off by a power of ten.
FACTOR = 1.6


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("channels", "outputs", "k", "stride", "size"),
    [(64, 64, 3, 1, 28), (256, 64, 1, 1, 28), (256, 256, 3, 1, 7), (3, 64, 7, 2, 64), (64, 128, 3, 2, 28)],
)
def test_error_of_convolutions_in_float32(layout, channels, outputs, k, stride, size):
    pad = k // 2
    convolution = Convolution(Window(None, (stride, stride), ((pad, pad), (pad, pad))), 1, layout)
    x, w = normal((4, channels, size, size)), normal((outputs, channels, k, k), 1)
    g = normal((4, outputs, (size + 2 * pad - k) // stride + 1, (size + 2 * pad - k) // stride + 1), 2)
    exact = torchs(
        in_torch(convolution), [v.astype("f4").astype("f8") for v in (x, w)], g.astype("f4").astype("f8")
    )
    x, w, g = (v.astype("float32") for v in (x, w, g))
    theirs = [
        torchs(in_torch(convolution, layout=memory), [x, w], g)
        for memory in (torch.contiguous_format, torch.channels_last)
    ]
    if layout == "NHWC":
        y, gx, gw = ours(Conv2d(convolution), [last(x), w], last(g))
        results = [y.transpose(0, 3, 1, 2), gx.transpose(0, 3, 1, 2), gw]
    else:
        results = ours(Conv2d(convolution), [x, w], g)
    for result, *peers, reference in zip(results, *theirs, exact, strict=True):
        assert result.dtype == "float32"
        error, *tolerated = (np.sqrt(((r - reference) ** 2).mean()) for r in (result, *peers))
        assert error <= FACTOR * max(tolerated)


def test_error_of_means_in_float32():
    x = normal((2, 64, 56, 56)) + 10
    exact = x.astype("f4").astype("f8").mean((2, 3))
    peer = torch.tensor(x.astype("f4")).mean((2, 3)).numpy()
    tolerated = np.sqrt(((peer - exact) ** 2).mean())
    for layout in ("NCHW", "NHWC"):
        image = x.astype("f4") if layout == "NCHW" else last(x.astype("f4"))
        (mean, _) = ours(GlobalAvgPool2d(layout), [image], np.ones((2, 64), "float32"))
        assert np.sqrt(((mean - exact) ** 2).mean()) <= FACTOR * tolerated
