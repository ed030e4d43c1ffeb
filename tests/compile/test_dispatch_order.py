import numpy as np
import pytensor.tensor as pt
import pytest


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_sort(compare, axis, dtype):
    x = pt.matrix("x", dtype=dtype)
    value = np.random.default_rng(0).permutation(12).reshape(3, 4).astype(dtype)
    compare([x], [pt.sort(x, axis), pt.argsort(x, axis)], [value])


def test_stable_sort_keeps_the_order_of_ties(compare):
    x = pt.vector("x")
    value = np.random.default_rng(0).integers(0, 3, 200).astype(x.dtype)
    compare([x], [pt.argsort(x, kind="stable")], [value])
