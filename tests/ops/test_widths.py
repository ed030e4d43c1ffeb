"""Networks of images with arrays of 16 bits between their Ops."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk import ops
from synk.compile import ArrayLinker, Debug, Profile, array_mode
from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.loops import LoopKernels
from synk.ops.kernels.plain_pool import PlainPool

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


def test_gradients_are_float32_and_near_those_of_float32(device):
    inputs, loss, parameters, values = network()
    outputs = [loss, *pytensor.grad(loss, parameters)]
    plain = run(inputs, outputs, values, narrow=None)
    for xp in (np, device):
        for found, expected in zip(run(inputs, outputs, values, xp), plain, strict=True):
            assert found.dtype == "float32"
            np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())
            assert np.any(found != expected)


def test_what_is_converted_are_the_images_the_weights_and_the_gradient_of_the_logits(device):
    inputs, loss, parameters, _ = network()
    mode = array_mode(ArrayLinker(device, narrow="float16"))
    source = pytensor.function(inputs, pytensor.grad(loss, parameters), mode=mode).vm.jit_fn.source
    assert source.count("to_float16") == 1 + 3 + 1
    assert "to_float32" not in source


def test_every_node_gives_what_its_definition_gives_from_16_bits():
    inputs, loss, parameters, values = network()
    run(inputs, [loss, *pytensor.grad(loss, parameters)], values, observe=Debug())


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
