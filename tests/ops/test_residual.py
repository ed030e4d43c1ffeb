"""The rewrites to whole ends of residual blocks, and their numbers beside programs without them."""

from importlib.util import find_spec

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.elemwise import Elemwise

from support.cases.op_checks import draw, ops_of
from support.cuda.provider import needs_emulator
from support.cupy import stand_in
from synk.compile import ArrayLinker, array_mode
from synk.ops import batch_norm, conv2d, relu
from synk.ops.batch_norm import BatchNorm, BatchNormGradient
from synk.ops.residual import Residual, ResidualGradient

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


@needs_emulator
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


@needs_emulator
def test_gradients_meet_in_the_kernel(cupy):
    function = compiled(cupy, gradients(TWO_BLOCKS))
    assert sorted(op.n_gradients for op in ops_of(function, ResidualGradient)) == [1, 2]
    images = [op for op in ops_of(function, Elemwise) if getattr(op.scalar_op, "nin", 0) > 2]
    assert images == []  # no mask


@needs_emulator
@needs_ml_dtypes
def test_images_stay_in_16_bits(cupy):
    outputs = [TWO_BLOCKS.sum(), *gradients(TWO_BLOCKS)]
    narrow, wide = compiled(cupy, outputs, "bfloat16"), compiled(cupy, outputs)
    for result, expected in zip(narrow(*VALUES), wide(*VALUES), strict=True):
        assert result.dtype == "float32"
        scale = np.abs(expected).max()
        np.testing.assert_allclose(result / scale, expected / scale, atol=0.1)


@needs_emulator
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


@needs_emulator
def test_what_is_read_elsewhere_stays(cupy):
    norm = normalised(X)
    y = relu(norm + X)
    assert count(compiled_of_some(cupy, [y, norm]), Residual) == 0
    total = norm + X
    assert count(compiled_of_some(cupy, [relu(total), total]), Residual) == 0


@needs_emulator
def test_a_gradient_that_has_one_reader_is_masked_as_before(cupy):
    y = relu(normalised(conv2d(X, W)) + X)
    function = compiled_of_some(cupy, pt.grad((y**2).sum(), [W, GAMMA]))
    assert (count(function, Residual), count(function, ResidualGradient)) == (1, 0)


def compiled_of_some(xp, outputs):
    return pytensor.function(INPUTS, outputs, mode=array_mode(ArrayLinker(xp)), on_unused_input="ignore")


def test_programs_of_processors_are_left_alone():
    assert count(compiled(np, gradients(TWO_BLOCKS)), Residual) == 0


@pytest.mark.parametrize("xp", [np, stand_in])
def test_definition(xp):
    x, y, shortcut, *gys = (pt.tensor4(dtype="float64") for _ in range(5))
    vectors = pt.dvectors(4)
    inputs = [x, y, shortcut, *gys, *vectors]
    outputs = [
        *Residual(1e-5, "NHWC")(x, *vectors[:2], shortcut, return_list=True),
        *ResidualGradient(2, "NHWC")(x, y, *vectors, *gys, return_list=True),
    ]
    values = [*(draw((2, 5, 4, 8), seed=k) for k in range(5)), *(draw(8, seed=k) + 3 for k in range(4))]
    programs = [
        pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
        for mode in (pytensor.compile.mode.Mode("py", None), array_mode(ArrayLinker(xp)))
    ]
    for found, expected in zip(*(program(*values) for program in reversed(programs)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="must have one shape"):
        programs[1](*values[:2], values[2][:1], *values[3:])
    with pytest.raises(NotImplementedError, match="second derivatives"):
        pt.grad(outputs[0].sum(), x)
