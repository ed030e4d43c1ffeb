"""The end of a residual block in CUDA, on an emulator: as batch norm and arithmetic one after the other."""

from importlib.util import find_spec

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.elemwise import Elemwise

from support.cases import norms as cases
from support.cases.norms import EPS, close
from support.cases.op_checks import draw, ops_of
from support.cuda.provider import OnHost, needs_emulator
from synk.compile import ArrayLinker, array_mode
from synk.gpu.kernels.plain_residual import PlainResidual
from synk.gpu.rewriting.residual_block import Residual, ResidualGradient
from synk.ops import batch_norm, conv2d, relu
from synk.ops.batch_norm import BatchNorm, BatchNormGradient

pytestmark = needs_emulator

cuda = OnHost()
# Packs and single elements, more rows than a block has, rows that no block fills.
SHAPES = [(300, 8), (37, 24), (5, 3), (2, 7, 5, 16), (3, 9, 9, 5)]


def arrays_of_block(shape, dtype, seed=1):
    """Return gradients, x, the shortcut, gamma and beta."""
    gy, x, gamma, beta = cases.batch(seed, shape, "NHWC", dtype)
    other, shortcut, *_ = cases.batch(seed + 1, shape, "NHWC", dtype)
    return (gy, other), x, shortcut, gamma, beta


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype):
    _, x, shortcut, gamma, beta = arrays_of_block(shape, dtype)
    y, mean, inv_std = cuda.residual(EPS, "NHWC")(x, gamma, beta, shortcut)
    norm, *statistics = cuda.batch_norm(EPS, False, "NHWC")(x, gamma, beta)
    # The very bits: the backward pass looks where y is positive.
    np.testing.assert_array_equal(y, np.maximum(norm + shortcut, 0))
    np.testing.assert_array_equal([mean, inv_std], statistics)
    close(y, np.maximum(cases.batch_norm(x, gamma, beta, False, "NHWC")[0] + shortcut, 0))


@pytest.mark.parametrize("n_gradients", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(shape, dtype, n_gradients):
    gradients, x, shortcut, gamma, beta = arrays_of_block(shape, dtype)
    gradients = gradients[:n_gradients]
    y, mean, inv_std = cuda.residual(EPS, "NHWC")(x, gamma, beta, shortcut)
    inputs = x, y, gamma, beta, mean, inv_std, *gradients
    results = cuda.residual_gradient("NHWC")(*inputs)
    np.testing.assert_array_equal(results[3], np.where(y > 0, sum(gradients), 0))
    exact = cases.batch_norm_gradient(results[3], x, gamma, beta, mean, inv_std, False, "NHWC")
    n = x.size // len(gamma)
    for value, expected, scale in zip(results, exact, (4, n, n), strict=False):
        close(value, expected, scale)


def test_places_for_results_are_used_and_repeated_to_the_bit():
    gradients, x, shortcut, gamma, beta = arrays_of_block((3, 5, 5, 16), "float32")
    first = cuda.residual(EPS, "NHWC")(x, gamma, beta, shortcut)
    places = tuple(np.empty_like(array) for array in first)
    again = cuda.residual(EPS, "NHWC")(x, gamma, beta, shortcut, out=places)
    assert all(array is place for array, place in zip(again, places, strict=True))
    inputs = x, first[0], gamma, beta, *first[1:], *gradients
    second = cuda.residual_gradient("NHWC")(*inputs)
    places = tuple(np.empty_like(array) for array in second)
    again = cuda.residual_gradient("NHWC")(*inputs, out=places)
    for a, b, place in zip(again, second, places, strict=True):
        assert a is place
        np.testing.assert_array_equal(a, b)


def test_16_bits_are_rounded_once_and_sums_are_of_what_is_stored():
    gradients, x, shortcut, gamma, beta = arrays_of_block((4, 6, 5, 24), "float32")
    gradients, x, shortcut = (
        [a.astype("float16") for a in arrays] for arrays in (gradients, [x], [shortcut])
    )
    (x,), (shortcut,) = x, shortcut
    y, mean, inv_std = cuda.residual(EPS, "NHWC")(x, gamma, beta, shortcut)
    exact = np.maximum(cases.batch_norm(x, gamma, beta, False, "NHWC")[0] + shortcut.astype("float64"), 0)
    assert (y.dtype, mean.dtype) == ("float16", "float32")
    np.testing.assert_allclose(y.astype("float64"), exact, rtol=2**-10, atol=2**-12)
    gx, ggamma, gbeta, g = cuda.residual_gradient("NHWC")(x, y, gamma, beta, mean, inv_std, *gradients)
    wide = np.where(y > 0, gradients[0].astype("float32") + gradients[1].astype("float32"), 0)
    np.testing.assert_array_equal(g, wide.astype("float16"))
    exact = cases.batch_norm_gradient(g, x, gamma, beta, mean, inv_std, False, "NHWC")
    np.testing.assert_allclose(gx / 4, exact[0] / 4, rtol=2**-10, atol=2**-12)
    np.testing.assert_allclose(ggamma, exact[1], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gbeta, exact[2], rtol=1e-5, atol=1e-4)


def test_nan_stays():
    _, x, shortcut, gamma, beta = arrays_of_block((8, 8), "float32")
    shortcut[3, 2] = np.nan
    y, *_ = cuda.residual(EPS, "NHWC")(x, gamma, beta, shortcut)
    assert np.isnan(y[3, 2])
    assert np.isnan(y).sum() == 1


@pytest.mark.parametrize(("shape", "layout"), [((2, 8, 3, 3), "NCHW"), ((0, 8), "NHWC")])
def test_what_has_no_kernel_is_computed_by_array_operations(shape, layout):
    random = np.random.default_rng(0)
    x, shortcut, *gradients = (random.normal(size=shape).astype("float32") for _ in range(4))
    gamma, beta = (random.normal(size=8).astype("float32") for _ in range(2))
    with np.errstate(all="ignore"):
        expected = PlainResidual(np).residual(EPS, layout)(x, gamma, beta, shortcut)
        inputs = x, expected[0], gamma, beta, *expected[1:], *gradients
        expected += PlainResidual(np).residual_gradient(layout)(*inputs)
        found = cuda.residual(EPS, layout)(x, gamma, beta, shortcut)
        found += cuda.residual_gradient(layout)(*inputs)
    for value, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-6, atol=1e-6)


# --- in programs ----------------------------------------------------------------------------------


needs_ml_dtypes = pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="bfloat16 needs ml_dtypes")
SHAPE = (2, 8, 5, 4)
X, W, GAMMA, BETA = pt.tensor4("x", dtype="float32"), *(pt.tensor4("w", dtype="float32"),), *pt.fvectors(2)
INPUTS = [X, W, GAMMA, BETA]
VALUES = [draw(SHAPE), draw((8, 8, 1, 1), seed=1), draw(8, seed=2), draw(8, seed=3)]
VALUES = [value.astype("float32") for value in VALUES]


def normalised(x):
    return batch_norm(x, GAMMA, BETA, pt.zeros(8, "float32"), pt.ones(8, "float32"), train=True)[0]


def block(x, shortcut=None):
    """Return a block with one convolution in its branch."""
    return relu(normalised(conv2d(x, W)) + (x if shortcut is None else shortcut))


def compiled(xp, outputs, narrow=None, without=()):
    mode = array_mode(ArrayLinker(xp, narrow=narrow)).excluding(*without)
    with pytensor.config.change_flags(on_opt_error="raise"):
        return pytensor.function(INPUTS, outputs, mode=mode)


def gradients(y):
    return pt.grad((y**2).sum(), INPUTS)


def count(function, kind):
    return len(ops_of(function, kind))


TWO_BLOCKS = block(block(X))
WITH_PROJECTION = block(block(X, normalised(conv2d(X, W * 2))))


@pytest.mark.parametrize("y", [TWO_BLOCKS, WITH_PROJECTION], ids=["shortcut", "projection"])
def test_blocks_and_their_gradients(cupy, y):
    outputs = [y, *gradients(y)]
    function, plain = compiled(cupy, outputs), compiled(cupy, outputs, without=["residual"])
    assert (count(plain, Residual), count(plain, ResidualGradient)) == (0, 0)
    assert (count(function, Residual), count(function, ResidualGradient)) == (2, 2)
    n_norms = count(plain, BatchNorm) - 2
    assert (count(function, BatchNorm), count(function, BatchNormGradient)) == (n_norms, n_norms)
    first, *others = zip(function(*VALUES), plain(*VALUES), strict=True)
    np.testing.assert_array_equal(*first)
    for result, expected in others:  # sums in another order
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


def test_gradients_meet_in_the_kernel(cupy):
    function = compiled(cupy, gradients(TWO_BLOCKS))
    assert sorted(op.n_gradients for op in ops_of(function, ResidualGradient)) == [1, 2]
    images = [op for op in ops_of(function, Elemwise) if getattr(op.scalar_op, "nin", 0) > 2]
    assert images == []  # no mask


@needs_ml_dtypes
def test_images_stay_in_16_bits(cupy):
    outputs = [TWO_BLOCKS.sum(), *gradients(TWO_BLOCKS)]
    narrow, wide = compiled(cupy, outputs, "bfloat16"), compiled(cupy, outputs)
    for result, expected in zip(narrow(*VALUES), wide(*VALUES), strict=True):
        assert result.dtype == "float32"
        scale = np.abs(expected).max()
        np.testing.assert_allclose(result / scale, expected / scale, atol=0.1)


@pytest.mark.parametrize(
    "y",
    [
        normalised(X) + X,  # not rectified
        relu(normalised(X) + X + pt.exp(X)),
        relu(normalised(X) + GAMMA[:, None, None]),
        relu(relu(normalised(X)) + X),
    ],
    ids=["sum", "three", "broadcast", "rectified"],
)
def test_other_sums_stay(cupy, y):
    assert count(compiled_of_some(cupy, [y]), Residual) == 0


def test_what_is_read_elsewhere_stays(cupy):
    norm = normalised(X)
    y = relu(norm + X)
    assert count(compiled_of_some(cupy, [y, norm]), Residual) == 0
    total = norm + X
    assert count(compiled_of_some(cupy, [relu(total), total]), Residual) == 0


def test_a_gradient_that_has_one_reader_is_masked_as_before(cupy):
    y = relu(normalised(conv2d(X, W)) + X)
    function = compiled_of_some(cupy, pt.grad((y**2).sum(), [W, GAMMA]))
    assert (count(function, Residual), count(function, ResidualGradient)) == (1, 0)


def compiled_of_some(xp, outputs):
    return pytensor.function(INPUTS, outputs, mode=array_mode(ArrayLinker(xp)), on_unused_input="ignore")
