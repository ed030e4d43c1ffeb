"""Changes of the size of images as symbolic Ops."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.images import check_entry, check_shapes, normal
from support.slow import slow
from synk.compile import array_mode
from synk.ops import upsample2d
from synk.ops.kernels.resampling import Resampling
from synk.ops.upsample import Upsample2d, Upsample2dGradient

MODES = ["FAST_COMPILE", array_mode()]
RESAMPLINGS = [
    Resampling(None, (2.0, 3.0)),
    Resampling((7, 2), None, "bilinear", layout="NHWC"),
    Resampling(None, (1.5, 2.0), "bilinear", True),
]


def evaluate(variable):
    return pytensor.function([], variable, mode=array_mode())()


def test_by_hand():
    x = np.array([[0.0, 4], [8, 16]]).reshape(1, 1, 2, 2)
    np.testing.assert_array_equal(evaluate(upsample2d(x, (1, 2)))[0, 0], [[0, 0, 4, 4], [8, 8, 16, 16]])
    smooth = evaluate(upsample2d(x, (1, 2), mode="bilinear"))
    np.testing.assert_array_equal(smooth[0, 0], [[0, 1, 3, 4], [8, 10, 14, 16]])
    corners = evaluate(upsample2d(x, size=(3, 2), mode="bilinear", align_corners=True))
    np.testing.assert_array_equal(corners[0, 0], [[0, 4], [4, 10], [8, 16]])


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_entries_and_shapes(resampling):
    op, x = Upsample2d(resampling), normal((3, 4, 5, 6))
    check_entry(op, x)
    check_shapes_of_result(op, x)
    sides = (5, 6) if resampling.layout == "NCHW" else (4, 5)
    gy = normal(resampling.output_shape(x.shape), 1)
    check_entry(Upsample2dGradient(resampling), gy, *sides)
    check_shapes(Upsample2dGradient(resampling), gy, *sides)


def check_shapes_of_result(op, x):
    """As `check_shapes`; of a size that is given, even unknown images have it."""
    known = pt.tensor(dtype="float64", shape=x.shape)
    assert op(known).type.shape == op.resampling.output_shape(x.shape)
    unknown = pt.tensor4(dtype="float64")
    function = pytensor.function([unknown], op(unknown).shape, mode=array_mode())
    assert not any(isinstance(node.op, Upsample2d) for node in function.maker.fgraph.apply_nodes)
    assert tuple(function(x)) == op.resampling.output_shape(x.shape)


def test_what_is_known_of_the_size():
    x = pt.tensor("x", dtype="float32", shape=(None, 3, 8, None))
    assert upsample2d(x, 2.5).type.shape == (None, 3, 20, None)
    assert upsample2d(x, size=(7, 9)).type.shape == (None, 3, 7, 9)
    assert upsample2d(x, 2).dtype == "float32"


@pytest.mark.parametrize("mode", [slow(MODES[0]), MODES[1]])
def test_the_gradient_is_the_transpose(mode):
    for resampling in RESAMPLINGS:
        x, other = pt.tensor4("x", dtype="float64"), pt.tensor4("g", dtype="float64")
        y = Upsample2d(resampling)(x)
        gx = pytensor.grad((y * other).sum(), x)
        values = normal((2, 4, 5, 3)), normal(resampling.output_shape((2, 4, 5, 3)), 1)
        found = pytensor.function([x, other], [y, gx], mode=mode)(*values)
        np.testing.assert_allclose((found[0] * values[1]).sum(), (found[1] * values[0]).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((), {}, ValueError, "give a scale or a size"),
        ((2,), {"size": 3}, ValueError, "give a scale or a size"),
        (("2",), {}, TypeError, "scale='2' must be a number or a pair of numbers"),
        (((1, 2, 3),), {}, TypeError, r"scale=\(1, 2, 3\) must be a number or a pair"),
        ((float("nan"),), {}, TypeError, "scale=nan must be a number"),
        ((-1,), {}, ValueError, r"scale=\(-1.0, -1.0\) must be positive"),
        ((0.1,), {}, ValueError, "a height of 4 pixels .* gives 0 pixels"),
        ((), {"size": 2.5}, TypeError, "size=2.5 must be an int or a pair of ints"),
        ((), {"size": 0}, ValueError, r"size=\(0, 0\) must be positive"),
        ((2,), {"mode": "cubic"}, ValueError, "mode='cubic' is unknown; choose one of nearest, bilinear"),
        ((2,), {"align_corners": True}, ValueError, "align_corners=True has no meaning"),
        ((2,), {"align_corners": 1}, TypeError, "align_corners=1 must be True or False"),
    ],
)
def test_arguments_that_are_refused(arguments, keywords, error, message):
    with pytest.raises(error, match=f"^upsample2d: .*{message}"):
        upsample2d(normal((1, 1, 4, 4)), *arguments, **keywords)


@pytest.mark.parametrize("mode", MODES)
def test_images_that_do_not_fit_when_run(mode):
    x = pt.tensor4("x", dtype="float64")
    function = pytensor.function([x], upsample2d(x, 0.5), mode=mode)
    with pytest.raises(ValueError, match="upsample2d: a width of 1 pixels .* gives 0 pixels"):
        function(np.zeros((1, 1, 2, 1)))
    assert function(np.zeros((0, 1, 2, 2))).shape == (0, 1, 1, 1)
