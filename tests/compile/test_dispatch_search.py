from itertools import product

import numpy as np
import pytensor.tensor as pt
import pytest


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool"])
def test_nonzero(compare, dtype):
    x, v = pt.tensor3("x", dtype=dtype), pt.vector("v", dtype=dtype)
    value = np.random.default_rng(0).integers(0, 2, (2, 3, 4)).astype(dtype)
    compare([x, v], [*pt.nonzero(x), *pt.nonzero(v), pt.flatnonzero(x)], [value, value[0, 0]])


@pytest.mark.parametrize("side", ["left", "right"])
def test_places_in_a_sorted_vector(compare, side):
    x, v, order = pt.dvector("x"), pt.dmatrix("v"), pt.lvector("order")
    outputs = [pt.searchsorted(x, v, side=side), pt.searchsorted(x, 2.0, side=side)]
    values = [np.array([1.0, 2, 2, 5]), np.array([[0.0, 2], [3, 9]]), np.array([0])]
    compare([x, v, order], outputs, values)
    values = [np.array([5.0, 2, 1, 2]), values[1], np.array([2, 1, 3, 0])]
    compare([x, v, order], [pt.searchsorted(x, v, side=side, sorter=order)], values)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("wanted", list(product([False, True], repeat=3)))
def test_different_values(compare, axis, wanted):
    x = pt.matrix("x")
    outputs = pt.unique(x, *wanted, axis=axis)
    value = np.array([[2, 1, 2, 1], [0, 1, 0, 1], [2, 1, 2, 1]], dtype=x.dtype)
    compare([x], outputs if isinstance(outputs, list) else [outputs], [value])


def test_different_values_of_little(compare):
    x, y = pt.scalar("x"), pt.vector("y")
    compare([x, y], [pt.unique(x), *pt.unique(y, True, True)], [np.asarray(3, x.dtype), np.zeros(0, y.dtype)])


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
