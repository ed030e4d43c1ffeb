"""Operations of networks and their gradients on a device: the numbers of NumPy, and nothing on the host."""

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk import ops
from synk.compile import ArrayLinker, array_mode

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def conv(images, filters, **options):
    """Return a convolution as (graph, arrays); bias and rectifier are drawn into it."""

    def graph(x, w, bias):
        return ops.relu(ops.conv2d(x, w, bias, **options))

    return graph, [normal(*images), normal(*filters), normal(filters[0])]


def of_batch(x, gamma, beta):
    y, _ = ops.batch_norm(x, gamma, beta, np.zeros(3, "float32"), np.ones(3, "float32"), train=True)
    return ops.relu(y)


def of_record(x, gamma, beta):
    return ops.batch_norm(x, gamma, beta, np.zeros(3, "float32"), np.ones(3, "float32"), train=False)[0]


IMAGES = (4, 3, 9, 8)
CASES = {
    "conv 3x3": conv(IMAGES, (5, 3, 3, 3), padding=1),
    "conv 1x1": conv(IMAGES, (6, 3, 1, 1)),
    "conv 7x7 stride 2": conv((2, 3, 32, 32), (8, 3, 7, 7), stride=2, padding=3),
    "conv stride 2, odd": conv(IMAGES, (4, 3, 2, 3), stride=(2, 1), padding=(1, 0)),
    "conv dilated": conv((2, 3, 12, 12), (4, 3, 3, 3), dilation=2, padding=2),
    "conv in groups": conv((2, 6, 8, 8), (4, 3, 3, 3), groups=2, padding=1),
    "conv without images": conv((0, 3, 8, 8), (4, 3, 3, 3)),
    "max pool": (lambda x: ops.max_pool2d(x, 3, stride=2, padding=1), [normal(*IMAGES)]),
    "max pool, apart": (lambda x: ops.max_pool2d(x, 2), [normal(*IMAGES)]),
    "avg pool": (lambda x: ops.avg_pool2d(x, 2), [normal(*IMAGES)]),
    "avg pool, over edges": (lambda x: ops.avg_pool2d(x, 3, stride=2, padding=1), [normal(*IMAGES)]),
    "global pool": (ops.global_avg_pool2d, [normal(*IMAGES)]),
    "batch norm": (of_batch, [normal(*IMAGES), normal(3), normal(3)]),
    "batch norm of vectors": (of_batch, [normal(64, 3), normal(3), normal(3)]),
    "batch norm, running": (of_record, [normal(*IMAGES), normal(3), normal(3)]),
    "layer norm": (ops.layer_norm, [normal(5, 33), normal(33), normal(33)]),
    "cross-entropy": (
        lambda logits: ops.softmax_cross_entropy(logits, np.arange(7) % 5),
        [normal(7, 5)],
    ),
    "softmax of rows": (lambda x: pt.special.log_softmax(x, axis=1), [normal(7, 1000)]),
    "dense": (lambda x, w, b: ops.relu(x @ w + b), [normal(30, 20), normal(20, 10), normal(10)]),
    "batched products": (lambda x, y: x @ y, [normal(6, 8, 5), normal(6, 5, 7)]),
}


@pytest.fixture(scope="module")
def expected():
    """Return the numbers of NumPy by the linker; of each case once."""
    known = {}

    def numbers(name):
        if name not in known:
            known[name] = values(name, array_mode())
        return known[name]

    return numbers


def values(name, mode):
    """Return the result and the gradient of each input, weighted so that no two elements are alike."""
    build, arrays = CASES[name]
    inputs = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in arrays]
    y = build(*inputs)
    weights = pt.cos(pt.arange(y.size).reshape(y.shape).astype("float32"))
    outputs = [y, *pt.grad((y * weights).sum(), inputs)]
    return pytensor.function(inputs, outputs, mode=mode)(*arrays)


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_numpy(arrays, expected, name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*runs on the host")
        found = values(name, array_mode(ArrayLinker(arrays, host_ops="warn")))
    for result, reference in zip(found, expected(name), strict=True):
        scale = np.abs(reference).max(initial=1)
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=2e-5 * scale, strict=True)
