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


@pytest.mark.parametrize("kind", ["quicksort", "mergesort", "heapsort", "stable"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_kinds(compare, kind, dtype):
    x = pt.tensor3("x", dtype=dtype)
    value = np.random.default_rng(0).integers(-9, 9, (3, 4, 5)).astype(dtype)
    outputs = [pt.sort(x, axis, kind) for axis in (0, -1, None)]
    if kind in ("mergesort", "stable"):  # the others leave the order of ties open
        outputs += [pt.argsort(x, axis, kind) for axis in (0, -1, None)]
    compare([x], outputs, [value])
