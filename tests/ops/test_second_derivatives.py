"""Derivatives of derivatives, against central differences of the first; in torch's tests against torch."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.images import normal
from support.slow import slow
from synk import ops
from synk.compile import array_mode


def convolved(x, w):
    return ops.conv2d(x, w, stride=(2, 1), padding=((1, 0), (0, 2)), dilation=(1, 2), groups=2)


def transposed(x, w):
    return ops.conv_transpose2d(x, w, stride=(2, 3), padding=1, output_padding=(1, 0), groups=2)


STEP = 1e-6
IMAGE, FILTERS = normal((2, 4, 4, 3)), normal((4, 2, 2, 2), 1)

CASES = {
    "convolution": (convolved, IMAGE, FILTERS),
    "transposed convolution": (transposed, IMAGE, FILTERS),
    "maxima": (lambda x: ops.max_pool2d(x, 3, stride=1, padding=1), IMAGE),
    "means": (lambda x: ops.avg_pool2d(x, 2, padding=1, count_padding=False), IMAGE),
    "nearest": (lambda x: ops.upsample2d(x, (2, 1.5)), IMAGE),
    "bilinear": (lambda x: ops.upsample2d(x, (2, 1.5), mode="bilinear"), IMAGE),
    "edges": (lambda x: ops.crop(ops.pad(x, 1, value=0.5), ((2, 0), (0, 2))), IMAGE),
    "lines": (lambda x, w: ops.max_pool1d(ops.conv1d(x, w), 2), normal((2, 3, 6)), normal((4, 3, 2), 1)),
    "group norm": (lambda *v: ops.group_norm(*v, groups=2, eps=0.1), IMAGE, normal(4, 2), normal(4, 3)),
    "layer norm": (lambda *v: ops.layer_norm(*v, eps=0.1), IMAGE, normal((4, 3), 2), normal((4, 3), 3)),
}


# Formulas take long to compile, and to compute as they were written.
WRITTEN = ("group norm", "layer norm")


def tried(name):
    """Return a case with each of its modes, of which the fast tests take one at most."""
    compiled, written = (name, array_mode()), (name, "FAST_COMPILE")
    return slow(*compiled) if name in WRITTEN else compiled, slow(*written)


@pytest.mark.parametrize(("name", "mode"), [each for name in CASES for each in tried(name)])
def test_second_derivatives_are_those_of_differences(name, mode):
    function, *values = CASES[name]
    inputs = [pt.tensor(dtype="float64", shape=(None,) * v.ndim) for v in values]
    first = pytensor.grad((function(*inputs) ** 3).sum(), inputs)
    penalty = sum((gradient * pt.tanh(gradient)).sum() for gradient in first)
    both = pytensor.function(inputs, [penalty, *pytensor.grad(penalty, inputs)], mode=mode)
    directions = [normal(value.shape, 5 + k) for k, value in enumerate(values)]
    _, *results = both(*values)
    for k, (result, direction) in enumerate(zip(results, directions, strict=True)):
        there, back = (
            both(*values[:k], values[k] + step * direction, *values[k + 1 :])[0] for step in (STEP, -STEP)
        )
        np.testing.assert_allclose((result * direction).sum(), (there - back) / (2 * STEP), rtol=1e-6)


@pytest.mark.parametrize("function", [convolved, transposed])
def test_a_third_derivative_is_there_too(function):
    """With w fixed, f(x) = sum(y ** 3) has a third derivative along one direction d: sum(6 y(d) ** 3)."""
    x, direction = (pt.tensor(dtype="float64", shape=IMAGE.shape) for _ in range(2))
    w = pt.as_tensor(FILTERS)
    value = (function(x, w) ** 3).sum()
    for _ in range(3):
        value = (pytensor.grad(value, x) * direction).sum()
    expected = 6 * (function(direction, w) ** 3).sum()
    found, wanted = pytensor.function([x, direction], [value, expected], mode=array_mode())(
        IMAGE, normal(IMAGE.shape, 2)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
