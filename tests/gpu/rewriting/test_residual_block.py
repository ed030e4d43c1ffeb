"""Whole ends of residual blocks as Ops; `tests/gpu/kernels/cuda` has the rewrites to them."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.op_checks import draw, ops_of
from synk.compile import ArrayLinker, array_mode
from synk.gpu.kernels.plain_residual import PlainResidual
from synk.gpu.rewriting.residual_block import Residual, ResidualGradient
from synk.ops import batch_norm, relu
from synk.ops.kernels.choose import PLAIN, PROVIDERS

X, GAMMA, BETA = pt.tensor4("x", dtype="float32"), *pt.fvectors(2)


def test_programs_of_processors_are_left_alone():
    norm = batch_norm(X, GAMMA, BETA, pt.zeros(8, "float32"), pt.ones(8, "float32"), train=True)[0]
    gradients = pt.grad((relu(norm + X) ** 2).sum(), [X, GAMMA, BETA])
    assert not ops_of(pytensor.function([X, GAMMA, BETA], gradients, mode=array_mode()), Residual)


def test_definition(device, monkeypatch):
    norms = PLAIN._replace(norms=lambda xp, dtype: PlainResidual(xp))
    monkeypatch.setitem(PROVIDERS, device.__name__, norms)
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
        for mode in (pytensor.compile.mode.Mode("py", None), array_mode(ArrayLinker(device)))
    ]
    for found, expected in zip(*(program(*values) for program in reversed(programs)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="must have one shape"):
        programs[1](*values[:2], values[2][:1], *values[3:])
    with pytest.raises(NotImplementedError, match="second derivatives"):
        pt.grad(outputs[0].sum(), x)
