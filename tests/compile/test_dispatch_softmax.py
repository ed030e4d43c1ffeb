import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_and_its_gradient(compare, axis, dtype):
    x = pt.matrix("x", dtype=dtype)
    p, q = pt.special.softmax(x, axis), pt.special.log_softmax(x, axis)
    outputs = [p, q, pt.grad((p**2).sum(), x), pt.grad((q[0] * x[1]).sum(), x), pt.logsumexp(x, axis=1)]
    value = np.random.default_rng(0).normal(size=(3, 4)).astype(dtype)
    compare([x], outputs, [value], rtol=2e-5, atol=1e-6)


def test_large_inputs_do_not_overflow():
    x = pt.vector("x", dtype="float32")
    outputs = [pt.special.softmax(x), pt.special.log_softmax(x)]
    p, q = pytensor.function([x], outputs, mode=array_mode())(np.array([1e4, 0, -1e4], "float32"))
    np.testing.assert_allclose(p, [1, 0, 0])
    np.testing.assert_allclose(q, [0, -1e4, -2e4])
