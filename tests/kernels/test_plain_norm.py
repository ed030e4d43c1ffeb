"""Normalisation in array operations, on a module that is as strict as one of a GPU.

That the numbers are right is held by the tests of the loops, which run on both.
"""

import numpy as np
import pytest

from support.cases import norms as cases
from support.cupy import stand_in
from synk.kernels.plain_norm import PlainNorm

numpy, device = PlainNorm(np), PlainNorm(stand_in)


def on_device(run, *inputs):
    """Run on the stand-in for a device, and return what comes of it, on the host."""
    inputs = [stand_in.asarray(array) for array in inputs]
    stand_in.counts.reset()
    results = run(*inputs)
    assert (stand_in.counts.uploads, stand_in.counts.downloads) == (0, 0)
    return [stand_in.asnumpy(value) for value in (results if isinstance(results, tuple) else [results])]


def same(values, expected):
    expected = expected if isinstance(expected, tuple) else [expected]
    for value, wanted in zip(values, expected, strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("shape", "layout"), [((6, 3), "NCHW"), ((2, 3, 4, 5), "NCHW"), ((2, 3, 4, 5), "NHWC")]
)
def test_batch_norm(shape, layout, relu):
    gy, x, gamma, beta = cases.batch(0, shape, layout, "float32")
    results = numpy.batch_norm(1e-5, relu, layout)(x, gamma, beta)
    same(on_device(device.batch_norm(1e-5, relu, layout), x, gamma, beta), results)
    inputs = gy, x, gamma, beta, *results[1:]
    expected = numpy.batch_norm_gradient(relu, layout)(*inputs)
    same(on_device(device.batch_norm_gradient(relu, layout), *inputs), expected)


def test_layer_norm():
    gy, x, _, _ = cases.batch(0, (4, 3, 5), "NCHW", "float32")
    gamma, beta = x[0], x[1]
    results = numpy.layer_norm(1e-5, 2)(x, gamma, beta)
    same(on_device(device.layer_norm(1e-5, 2), x, gamma, beta), results)
    inputs = gy, x, gamma, *results[1:]
    same(on_device(device.layer_norm_gradient(2), *inputs), numpy.layer_norm_gradient(2)(*inputs))


def test_cross_entropy():
    g, logits, _, _ = cases.batch(0, (6, 3), "NCHW", "float32")
    labels = np.array([0, 1, 2, 0, 1, 2])
    losses, log_sum = numpy.softmax_cross_entropy()(logits, labels)
    same(on_device(device.softmax_cross_entropy(), logits, labels), (losses, log_sum))
    inputs = g[:, 0], logits, labels, log_sum
    expected = numpy.softmax_cross_entropy_gradient()(*inputs)
    same(on_device(device.softmax_cross_entropy_gradient(), *inputs), expected)


def test_a_wrong_label_makes_nan_on_a_device():
    _, logits, _, _ = cases.batch(0, (3, 3), "NCHW", "float32")
    losses, _ = on_device(device.softmax_cross_entropy(), logits, np.array([0, 3, -1]))
    assert np.isnan(losses).tolist() == [False, True, True]


def test_inputs_are_not_written_to():
    gy, x, gamma, beta = cases.batch(0, (6, 3), "NCHW", "float32")
    for array in (gy, x, gamma, beta):
        array.flags.writeable = False
    _, mean, inv_std = numpy.batch_norm(1e-5, True, "NCHW")(x, gamma, beta)
    numpy.batch_norm_gradient(True, "NCHW")(gy, x, gamma, beta, mean, inv_std)
    labels = np.zeros(6, int)
    _, log_sum = numpy.softmax_cross_entropy()(x, labels)
    numpy.softmax_cross_entropy_gradient()(gy[:, 0], x, labels, log_sum)
