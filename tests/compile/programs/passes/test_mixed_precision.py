"""Networks in 16 bits beside float32: gradients as near as those of torch's autocast, and training alike.

The bounds come from the errors of the same networks, with the same weights, in torch 2.13 on CPU, under
``torch.autocast`` with float32 weights: the Euclidean norm of a gradient's error over that of the gradient.
"""

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.slow import slow
from synk import ops
from synk.compile import ArrayLinker, Debug, Profile, array_mode
from synk.compile.programs.elementwise.fusion import TAG
from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.loops import LoopKernels
from synk.ops.kernels.plain_pool import PlainPool

needs_ml_dtypes = pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="bfloat16 needs ml_dtypes")


class Weights:
    """Random weights of a network, in the order in which they are asked for."""

    def __init__(self):
        self.all, self.rng = [], np.random.default_rng(0)

    def normal(self, *shape, gain=2.0):
        fan = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        return self.new(self.rng.normal(size=shape) * np.sqrt(gain / fan))

    def new(self, value):
        self.all.append(pytensor.shared(value.astype("float32")))
        return self.all[-1]


def perceptron(make):
    """Two hidden layers."""
    x, y = pt.fmatrix(), pt.lvector()
    hidden = ops.relu(x @ make.normal(20, 64) + make.new(np.zeros(64)))
    hidden = pt.tanh(hidden @ make.normal(64, 64) + make.new(np.zeros(64)))
    logits = hidden @ make.normal(64, 5) + make.new(np.zeros(5))
    values = [make.rng.normal(size=(64, 20)).astype("float32"), make.rng.integers(0, 5, 64)]
    return [x, y], ops.softmax_cross_entropy(logits, y).mean(), values


def residual(make):
    """Five convolutions with batch normalisation, in two residual blocks after a stem."""
    x, y = pt.tensor4(dtype="float32"), pt.lvector()

    def normed(image, n_in):
        image = ops.conv2d(image, make.normal(16, n_in, 3, 3), padding=1)
        gamma, beta, zeros, ones = make.new(np.ones(16)), make.new(np.zeros(16)), np.zeros(16), np.ones(16)
        running = [pytensor.shared(value.astype("float32")) for value in (zeros, ones)]
        return ops.batch_norm(image, gamma, beta, *running, train=True)[0]

    image = ops.relu(normed(x, 3))
    for pooled in (True, False):
        image = ops.relu(normed(ops.relu(normed(image, 16)), 16) + image)
        image = ops.max_pool2d(image, 2) if pooled else image
    logits = ops.global_avg_pool2d(image) @ make.normal(16, 5)
    values = [make.rng.normal(size=(16, 3, 12, 12)).astype("float32"), make.rng.integers(0, 5, 16)]
    return [x, y], ops.softmax_cross_entropy(logits, y).mean(), values


def attention(make):
    """An embedding, attention and a gated perceptron."""
    tokens, y = pt.lmatrix(), pt.lvector()
    stream = make.normal(30, 32, gain=30.0)[tokens]
    query, key, value, out = (make.normal(32, 32, gain=1.0) for _ in range(4))
    x = ops.layer_norm(stream, make.new(np.ones(32)), make.new(np.zeros(32)))
    scores = (x @ query) @ (x @ key).transpose(0, 2, 1) * np.float32(32**-0.5)
    stream = stream + (pt.special.softmax(scores, axis=-1) @ (x @ value)) @ out
    hidden = stream @ make.normal(32, 64)
    stream = stream + (hidden * pt.sigmoid(hidden)) @ make.normal(64, 32)
    loss = ops.softmax_cross_entropy(stream.mean(axis=1) @ make.normal(32, 5), y).mean()
    return [tokens, y], loss, [make.rng.integers(0, 30, (16, 10)), make.rng.integers(0, 5, 16)]


class Trained(NamedTuple):
    """The results of 50 steps of gradient descent."""

    source: str
    gradients: list  # of the first step
    losses: list
    weights: list


@cache
def train(build, narrow):
    """Train a network, by a program without kernels: they take seconds to compile."""
    make = Weights()
    inputs, loss, values = build(make)
    gradients = pytensor.grad(loss, make.all)
    rate = np.float32(0.05)
    mode = array_mode(ArrayLinker(narrow=narrow)).excluding(TAG)
    updates = [(w, w - rate * g) for w, g in zip(make.all, gradients, strict=True)]
    step = pytensor.function(inputs, [loss, *gradients], updates=updates, mode=mode)
    results = [step(*values) for _ in range(50)]
    losses = [float(loss) for loss, *_ in results]
    return Trained(step.vm.jit_fn.source, results[0][1:], losses, [w.get_value() for w in make.all])


# (the largest of all weights, the mean) of torch
TORCH = {
    ("bfloat16", perceptron): (0.0422, 0.0163),
    ("bfloat16", residual): (0.1318, 0.0643),
    ("bfloat16", attention): (0.0101, 0.0060),
    ("float16", perceptron): (0.0010, 0.0008),
    ("float16", residual): (0.0435, 0.0218),
    ("float16", attention): (0.0015, 0.0009),
}
TORCH_LOSSES = 0.0083  # the largest relative distance of 50 losses, that of attention in bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=needs_ml_dtypes)])
@pytest.mark.parametrize("build", [perceptron, slow(residual), slow(attention)])
def test_gradients_are_as_near_as_those_of_autocast_and_losses_fall_alike(build, dtype):
    plain, narrow = train(build, None), train(build, dtype)
    assert dtype in narrow.source
    assert {w.dtype for w in narrow.weights} == {np.dtype("float32")}
    errors = [
        np.linalg.norm(found - expected) / np.linalg.norm(expected)
        for found, expected in zip(narrow.gradients, plain.gradients, strict=True)
    ]
    largest, mean = TORCH[dtype, build]
    assert 0 < max(errors) < 1.5 * largest  # which way numbers are rounded is chance
    assert np.mean(errors) < 1.5 * mean
    np.testing.assert_allclose(narrow.losses, plain.losses, rtol=1.5 * TORCH_LOSSES)
    assert narrow.losses[-1] < 0.5 * narrow.losses[0]


# --- networks of images, and the arrays between their Ops -----------------------------------------


RNG = np.random.default_rng(8)


def shared(*shape):
    return pytensor.shared(RNG.normal(size=shape, scale=0.4).astype("float32"))


def network():
    """Return inputs, loss and parameters of a small residual network, and values for the inputs."""
    x, y = pt.tensor4("x", dtype="float32"), pt.ivector("y")
    w1, w2, w3 = shared(8, 3, 3, 3), shared(8, 8, 3, 3), shared(8, 5)
    gamma, beta, scale, shift = (shared(8) for _ in range(4))
    normed, *_ = ops.batch_norm(ops.conv2d(x, w1, padding=1), gamma, beta, shared(8), shared(8), train=True)
    stem = ops.max_pool2d(ops.relu(normed), 2)
    block = ops.avg_pool2d(ops.relu(stem + ops.conv2d(stem, w2, padding=1)), 2)
    features = ops.layer_norm(ops.global_avg_pool2d(block), scale, shift)
    loss = ops.softmax_cross_entropy(features @ w3, y).mean()
    values = [RNG.normal(size=(6, 3, 8, 8)).astype("float32"), RNG.integers(0, 5, 6).astype("int32")]
    return [x, y], loss, [w1, w2, w3, gamma, beta, scale, shift], values


def run(inputs, outputs, values, xp=np, narrow="float16", observe=None):
    mode = array_mode(ArrayLinker(xp, narrow=narrow, observe=observe))
    return pytensor.function(inputs, outputs, mode=mode)(*values)


@pytest.mark.slow
def test_gradients_are_float32_and_near_those_of_float32(device):
    inputs, loss, parameters, values = network()
    outputs = [loss, *pytensor.grad(loss, parameters)]
    plain = run(inputs, outputs, values, narrow=None)
    for xp in (np, device):
        for found, expected in zip(run(inputs, outputs, values, xp), plain, strict=True):
            assert found.dtype == "float32"
            np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())
            assert np.any(found != expected)


@pytest.mark.slow
def test_what_is_converted_are_the_images_the_weights_and_the_gradient_of_the_logits(device):
    inputs, loss, parameters, _ = network()
    mode = array_mode(ArrayLinker(device, narrow="float16"))
    source = pytensor.function(inputs, pytensor.grad(loss, parameters), mode=mode).vm.jit_fn.source
    assert source.count("to_float16") == 1 + 3 + 1
    assert "to_float32" not in source


@pytest.mark.slow
def test_every_node_gives_what_its_definition_gives_from_16_bits():
    inputs, loss, parameters, values = network()
    run(inputs, [loss, *pytensor.grad(loss, parameters)], values, observe=Debug())


@pytest.mark.slow
def test_images_have_16_bits_forward_and_backward_and_statistics_do_not(device):
    inputs, loss, parameters, values = network()
    profile = Profile()
    run(inputs, pytensor.grad(loss, parameters), values, device, observe=profile)
    for node in profile._slices:
        kind = node.name.partition("{")[0]
        dtypes = [str(dtype) for dtype, _ in node.outputs]
        if kind in ("BatchNorm", "LayerNorm", "BatchNormGradient", "LayerNormGradient"):
            assert dtypes == ["float16", "float32", "float32"], node.name
        elif kind in ("Conv2d", "Conv2dInputGradient", "MaxPool2d", "GlobalAvgPool2d", "AvgPool2dGradient"):
            assert dtypes[0] == "float16", node.name
        elif kind in ("Conv2dWeightGradient", "SoftmaxCrossEntropy", "SoftmaxCrossEntropyGradient"):
            assert dtypes[0] == "float32", node.name


@pytest.fixture
def seen(monkeypatch):
    """Return a way to have an operation of a provider note the dtypes of its arrays, and where it does."""

    def watch(provider, name, n_arrays):
        noted, original = [], getattr(provider, name)

        def make(self, *geometry):
            run = original(self, *geometry)

            def noting(*arrays, out=None):
                noted.append([str(array.dtype) for array in arrays[:n_arrays]])
                return run(*arrays, out=out)

            return noting

        monkeypatch.setattr(provider, name, make)
        return noted

    return watch


def test_a_convolution_whose_result_is_wanted_wide_computes_in_16_bits(device, monkeypatch, seen):
    noted = seen(Im2col, "forward", 2)
    monkeypatch.setattr(Im2col, "by_dtype", True, raising=False)
    x = pt.tensor4("x", dtype="float32")
    y = ops.conv2d(x, shared(8, 3, 3, 3))  # what a loss reads
    values = [RNG.normal(size=(2, 3, 6, 6)).astype("float32")]
    (expected,) = run([x], [y], values)
    noted.clear()
    (found,) = run([x], [y], values, device)
    assert noted == [["float16", "float16"]]
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, expected, atol=1e-2)


@pytest.mark.parametrize("by_dtype", [False, True])
def test_a_provider_that_goes_by_dtypes_gets_16_bits(device, monkeypatch, seen, by_dtype):
    noted = seen(PlainPool, "max_pool", 1)
    monkeypatch.setattr(PlainPool, "by_dtype", by_dtype)
    monkeypatch.setattr(LoopKernels, "by_dtype", False)
    x = pt.tensor4("x", dtype="float32")
    pooled = ops.max_pool2d(ops.conv2d(x, shared(8, 3, 3, 3)), 2)
    y = ops.conv2d(pooled, shared(2, 8, 1, 1), shared(2))
    values = [RNG.normal(size=(2, 3, 6, 6)).astype("float32")]
    (expected,) = run([x], [y], values)
    (found,) = run([x], [y], values, device)
    assert noted == [["float16" if by_dtype else "float32"]]
    np.testing.assert_allclose(found, expected, atol=1e-2)
