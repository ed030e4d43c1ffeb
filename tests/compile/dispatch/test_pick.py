from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.basic import permute_row_elements

from synk.compile import ArrayLinker, array_mode


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_repeat(compare, axis, dtype):
    x, times = pt.matrix("x", dtype=dtype), pt.lvector("times")
    lengths = {0: [2, 0], 1: [0, 3, 1], None: [1, 0, 2, 0, 0, 3]}[axis]
    outputs = [pt.repeat(x, times, axis), pt.repeat(x, 2, axis)]
    outputs += [pt.grad(pt.repeat(x, times, axis).sum(), x)] if dtype == "float32" else []
    compare([x, times], outputs, [np.arange(6).reshape(2, 3).astype(dtype), np.array(lengths)])


def test_a_device_is_not_asked_how_long_a_repetition_is(device):
    x, times = pt.dmatrix("x"), pt.lvector("times")
    function = pytensor.function([x, times], pt.repeat(x, times, 0), mode=array_mode(ArrayLinker(device)))
    device.counts.reset()
    assert function(np.ones((2, 3)), np.array([2, 1])).shape == (3, 3)
    assert device.counts.downloads == 1  # the result


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_choose(compare, mode):
    a, choices = pt.lmatrix("a"), pt.dtensor3("choices")
    high = 1 if mode == "raise" else 5
    values = [np.array([[0, high], [1, 0]]), np.arange(8.0).reshape(2, 2, 2)]
    compare([a, choices], [pt.choose(a, choices, mode=mode)], values)


def test_choice_outside_is_refused():
    a = pt.lvector("a")
    function = pytensor.function([a], pt.choose(a, np.zeros((2, 3)), mode="raise"), mode=array_mode())
    with pytest.raises(ValueError, match="invalid entry"):
        function(np.array([0, 1, 2]))


def test_choose_from_a_list():
    a, x = pt.lvector("a"), pt.dvector("x")
    mode = array_mode(ArrayLinker(host_ops="raise"))
    function = pytensor.function([a, x], pt.choose(a, [x, 2 * x]), mode=mode)
    np.testing.assert_array_equal(function(np.array([0, 1, 0]), np.arange(3.0)), [0, 2, 2])


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("shapes", [((4,), (4,)), ((3, 4), (4,)), ((4,), (3, 4)), ((2, 3, 4), (2, 3, 4))])
def test_permuted_rows(compare, inverse, shapes):
    x = pt.tensor("x", shape=(None,) * len(shapes[0]))
    y = pt.tensor("y", dtype="int32", shape=(None,) * len(shapes[1]))
    generator = np.random.default_rng(0)
    permutations = generator.permuted(np.broadcast_to(np.arange(4, dtype="int32"), shapes[1]), axis=-1)
    values = [generator.random(shapes[0]).astype(x.dtype), permutations]
    compare([x, y], [permute_row_elements(x, y, inverse)], values)


def test_permutations_that_do_not_fit_are_refused():
    x, y = pt.dmatrix("x"), pt.lmatrix("y")
    function = pytensor.function([x, y], permute_row_elements(x, y), mode=array_mode())
    with pytest.raises(ValueError, match="specify_broadcastable"):
        function(np.zeros((3, 2)), np.array([[1, 0]]))
    with pytest.raises(ValueError, match="permutations of 2 elements for rows of 3"):
        function(np.zeros((1, 3)), np.array([[1, 0]]))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_ravel(compare, order, mode):
    i, j, shape = pt.lvector("i"), pt.tensor("j", dtype="int8", shape=(None,)), pt.lvector("shape")
    outputs = [pt.ravel_multi_index((i, j), shape, mode=mode, order=order)]
    outputs += [pt.ravel_multi_index((i[0], j[1]), (4, 5), mode=mode, order=order)]
    high = 3 if mode == "raise" else 9
    values = [np.array([0, high, 2]), np.array([4, 1, 0], "int8"), np.array([4, 5])]
    compare([i, j, shape], outputs, values)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 3, 2)])
def test_unravel(compare, order, shape):
    places, matrix = pt.ivector("places"), pt.lmatrix("matrix")
    outputs = [*pt.unravel_index(places, shape, order=order), *pt.unravel_index(matrix, shape, order=order)]
    outputs += pt.unravel_index(places[1], shape, order=order)
    compare([places, matrix], outputs, [np.array([0, 11, 5], "int32"), np.arange(6).reshape(2, 3)])


def test_places_outside_are_refused():
    i = pt.lvector("i")
    function = pytensor.function([i], pt.ravel_multi_index((i, i), (3, 3)), mode=array_mode())
    with pytest.raises(ValueError, match="invalid entry"):
        function(np.array([3]))
    function = pytensor.function([i], pt.unravel_index(i, (3, 3)), mode=array_mode())
    with pytest.raises(ValueError, match="out of bounds"):
        function(np.array([9]))


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
