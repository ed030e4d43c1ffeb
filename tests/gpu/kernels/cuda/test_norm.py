"""Kernels in CUDA, on an emulator, of arrays of 16 bits: they compute in float32, and round once."""

import numpy as np
import pytest

from support.cases import norms as cases
from support.cases.norms import EPS
from support.cuda.provider import CUPY, OnHost, needs_emulator
from support.cupy import stand_in
from synk.gpu.kernels.cuda.cuda_functions import kernel, lengths

pytestmark = needs_emulator

cuda = OnHost()
STEP = 2**-10  # from one float16 to the next, relative


def rounded_once(value, exact):
    assert value.dtype == "float16"
    np.testing.assert_allclose(value.astype("float64"), exact, rtol=STEP, atol=STEP / 4)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(37, 24), (3, 8, 5, 16), (2, 7, 3, 5)])
def test_batch_norm(layout, relu, shape):
    gy, x, gamma, beta = cases.batch(1, shape, layout, "float32")
    gy, x = gy.astype("float16"), x.astype("float16")
    y, mean, inv_std = cuda.batch_norm(EPS, relu, layout)(x, gamma, beta)
    exact = cases.batch_norm(x.astype("float64"), gamma, beta, relu, layout)
    assert mean.dtype == inv_std.dtype == "float32"
    rounded_once(y, exact[0])
    np.testing.assert_allclose(mean, exact[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inv_std, exact[2], rtol=1e-5)
    inputs = gy, x, gamma, beta, mean, inv_std
    gx, ggamma, gbeta = cuda.batch_norm_gradient(relu, layout)(*inputs)
    wide = gy.astype("float32"), x.astype("float32"), *inputs[2:]
    exact = cases.batch_norm_gradient(*wide, relu, layout)
    assert ggamma.dtype == gbeta.dtype == "float32"
    rounded_once(gx / 4, exact[0] / 4)
    np.testing.assert_allclose(ggamma, exact[1], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gbeta, exact[2], rtol=1e-5, atol=1e-4)


def test_parameters_of_16_bits_have_statistics_of_16_bits():
    gy, x, gamma, beta = cases.batch(1, (37, 24), "NHWC", "float16")
    wanted = np.empty_like(x), np.empty_like(gamma), np.empty_like(gamma)
    results = cuda.batch_norm(EPS, True, "NHWC")(x, gamma, beta, out=wanted)
    exact = cases.batch_norm(x.astype("float64"), gamma, beta, True, "NHWC")
    for value, place, expected in zip(results, wanted, exact, strict=True):
        assert value is place
        np.testing.assert_allclose(value.astype("float64"), expected, rtol=4 * STEP, atol=4 * STEP)
    gradients = cuda.batch_norm_gradient(True, "NHWC")(gy, x, gamma, beta, *results[1:])
    assert [array.dtype.name for array in gradients] == ["float16"] * 3


@pytest.mark.parametrize("width", [5, 64, 1000])
def test_layer_norm(width):
    random = np.random.default_rng(0)
    x, gy = (random.normal(size=(6, width)).astype("float16") for _ in range(2))
    gamma, beta = (random.normal(size=width).astype("float32") for _ in range(2))
    y, mean, inv_std = cuda.layer_norm(EPS, 1)(x, gamma, beta)
    rounded_once(y, cases.layer_norm(x.astype("float64"), gamma, beta)[0])
    gx, ggamma, gbeta = cuda.layer_norm_gradient(1)(gy, x, gamma, mean, inv_std)
    exact = cases.layer_norm_gradient(gy, x, gamma, mean, inv_std)
    rounded_once(gx / 4, exact[0] / 4)
    np.testing.assert_allclose(ggamma, exact[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gbeta, exact[2], rtol=1e-5, atol=1e-5)


def test_cross_entropy():
    random = np.random.default_rng(0)
    logits, labels = (random.normal(size=(9, 40)) * 5).astype("float16"), random.integers(0, 40, 9)
    g = random.normal(size=9).astype("float16")
    losses, log_sum = cuda.softmax_cross_entropy()(logits, labels)
    rounded_once(losses, cases.cross_entropy(logits, labels)[0])
    glogits = cuda.softmax_cross_entropy_gradient()(g, logits, labels, log_sum)
    rounded_once(glogits, cases.cross_entropy_gradient(g, logits, labels))


def test_a_label_that_is_no_column_makes_a_loss_of_nan():
    logits, labels = np.zeros((4, 3), "float32"), np.array([0, -1, 3, 2**40])
    losses, _ = cuda.softmax_cross_entropy()(logits, labels)
    assert np.isnan(losses).tolist() == [False, True, True, True]


def test_bfloat16():
    """Bits stand for the numbers: NumPy has no bfloat16 of its own."""
    x = np.random.default_rng(0).normal(size=(4, 512)).astype("float32")
    x[1, 0] = np.nan
    bits = (x.view("uint32") >> 16).astype("uint16")
    x = (bits.astype("uint32") << 16).view("float32")
    there, y = stand_in.asarray(bits), stand_in.ndarray(np.zeros(4, "uint16"))
    run = kernel(CUPY, "pool", "plane_means", "bfloat16", VECTOR=8, PLACE="int", INDEX="int")
    run((1,), (32, 8), (there, *lengths(4, 512), y))
    means = (y.get().astype("uint32") << 16).view("float32")
    np.testing.assert_allclose(means, x.mean(1, dtype="float64"), rtol=2**-8)
    assert np.isnan(means).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 10), ("bfloat16", 7)])
def test_results_are_rounded_to_the_nearest_and_ties_to_the_even_one(dtype, digits):
    step = 2.0**-digits  # from 1 to the next number
    pairs = np.array([[1, 1 + step], [1 + step, 1 + 2 * step], [1, 1 + 3 * step], [-1, -1 - step]], "float32")
    wide = pairs.astype("float16").view("uint16") if dtype == "float16" else (pairs.view("uint32") >> 16)
    there, y = stand_in.asarray(wide.astype("uint16")), stand_in.ndarray(np.zeros(4, "uint16"))
    run = kernel(CUPY, "pool", "plane_means", dtype, VECTOR=1, PLACE="int", INDEX="int")
    run((1,), (32, 8), (there, *lengths(4, 2), y))
    means = y.get()
    numbers = means.view("float16") if dtype == "float16" else (means.astype("uint32") << 16).view("float32")
    assert numbers.tolist() == [1, 1 + 2 * step, 1 + 2 * step, -1]


def test_numbers_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="CuPy takes bfloat16 from it")
    gy, x, gamma, beta = cases.batch(1, (37, 24), "NHWC", "float32")
    x = x.astype(ml_dtypes.bfloat16)
    y, mean, inv_std = cuda.batch_norm(EPS, True, "NHWC")(x, gamma, beta)
    assert y.dtype == ml_dtypes.bfloat16
    exact = cases.batch_norm(x.astype("float64"), gamma, beta, True, "NHWC")
    np.testing.assert_allclose(y.astype("float64"), exact[0], rtol=2**-8)
    gx, ggamma, _ = cuda.batch_norm_gradient(True, "NHWC")(gy, x, gamma, beta, mean, inv_std)
    assert (gx.dtype, ggamma.dtype) == (x.dtype, gamma.dtype)
