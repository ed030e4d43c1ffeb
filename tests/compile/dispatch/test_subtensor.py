import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.subtensor import AdvancedSubtensor

from synk.compile import array_mode, emit

VALUE = np.arange(60.0).reshape(3, 4, 5)


def test_slices(compare):
    x, i = pt.dtensor3("x"), pt.lscalar("i")
    outputs = [
        x[0],
        x[i],
        x[:, 1:3],
        x[::-1, i:],
        x[i, 1, 2],
        x[..., -1],
        x[1:i:2, None],
        x[i : i + 1, :, ::2],
    ]
    compare([x, i], outputs, [VALUE, np.asarray(2)])


def test_set_and_increment(compare):
    x, y, i = pt.dtensor3("x"), pt.dvector("y"), pt.lscalar("i")
    outputs = [x[0].set(1.0), x[i, 1].inc(y), x[:, 1:3].set(y), x[i, 1, 2].inc(5), x[::2].inc(x[::2])]
    outputs += [y[i].set(3.0), pt.grad((x[i, 1:] ** 2).sum(), x)]
    compare([x, y, i], outputs, [VALUE, np.arange(5.0), np.asarray(2)])


def test_arrays_as_indices(compare):
    x, i, j = pt.dtensor3("x"), pt.lvector("i"), pt.lvector("j")
    outputs = [x[i], x[i, j], x[:, i], x[i, :, j], x[i[:, None], j], x[x > 30], x[i, 1], x[:, j, ::2]]
    compare([x, i, j], outputs, [VALUE, np.array([0, 2, 2, -1]), np.array([1, 0, 3, 1])])


def test_repeated_indices_add_up(compare):
    x, y, i, j = pt.dmatrix("x"), pt.dmatrix("y"), pt.lvector("i"), pt.lvector("j")
    outputs = [x[i].inc(y), x[i, j].inc(1.0), x[:, j].inc(2.0), x[i].set(y), pt.grad((x[i] ** 2).sum(), x)]
    outputs += [pt.grad((x[i, j] ** 2).sum(), x), x[x > 3].set(0.0), x[i].inc(2.0)]
    values = [np.arange(20.0).reshape(4, 5), np.ones((3, 5)), np.array([0, 2, 2]), np.array([1, 3, 3])]
    compare([x, y, i, j], outputs, values)


def test_rows_by_undeclared_broadcasting_are_refused():
    x, y, i = pt.dmatrix("x"), pt.dmatrix("y"), pt.lvector("i")
    function = pytensor.function([x, y, i], x[i].inc(y), mode=array_mode())
    with pytest.raises(ValueError, match="specify_broadcastable"):
        function(np.ones((4, 5)), np.ones((1, 5)), np.array([0, 1]))


def test_index_out_of_range():
    x, i = pt.dvector("x"), pt.lvector("i")
    function = pytensor.function([x, i], x[i], mode=array_mode())
    with pytest.raises(IndexError):
        function(np.ones(3), np.array([3]))


def test_an_advanced_index_without_arrays_gives_a_copy():
    x, i = pt.dmatrix("x"), pt.lscalar("i")
    program = emit(FunctionGraph([x, i], [AdvancedSubtensor((0, slice(None)))(x, i)], clone=False), np)
    value = np.arange(6.0).reshape(2, 3)
    (result,) = program(value, np.int64(1))  # as an intermediate 0-d result may be
    np.testing.assert_array_equal(result, [3, 4, 5])
    assert not np.shares_memory(result, value)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [[0, 5, -1, 5], []])
def test_gradient_of_an_embedding(compare, order, rows):
    table, i, scale = pt.ftensor3("table"), pt.ivector("i"), pt.fvector("scale")
    value = np.asarray(np.random.default_rng(0).random((6, 4, 3), dtype="float32"), order=order)
    gradient = pt.grad((table[i] ** 2 * scale).sum(), table)
    outputs = [gradient, table[i].inc(scale), table[i].inc(1.0)]
    compare([table, i, scale], outputs, [value, np.array(rows, "int32"), np.ones(3, "float32")])


@pytest.mark.parametrize("row", [4, -5])
def test_rows_out_of_range_are_refused(row):
    x, i = pt.dmatrix("x"), pt.lvector("i")
    function = pytensor.function([x, i], x[i].inc(1.0), mode=array_mode())
    with pytest.raises(IndexError, match="out of bounds for 4 rows"):
        function(np.ones((4, 2)), np.array([0, row]))


def test_masks(compare):
    x, mask, rows = pt.dmatrix("x"), pt.matrix("mask", dtype="bool"), pt.vector("rows", dtype="bool")
    outputs = [x[mask], x[rows], x[rows, 1:], x[mask].set(0.0), x[mask].inc(x[mask]), x[rows, 1].inc(2.0)]
    outputs += [pt.grad((x[mask] ** 2).sum(), x), x[~mask].set(x[~mask] * 2)]
    value = np.arange(6.0).reshape(2, 3)
    compare([x, mask, rows], outputs, [value, value % 2 == 0, np.array([False, True])])


ends = st.none() | st.integers(-7, 7)


slices = given(st.tuples(ends, ends, ends.filter(lambda step: step != 0)))


@slices
@settings(max_examples=8, deadline=None)
def test_any_slice(entries):
    check_slice(entries)


@pytest.mark.slow
@slices
@settings(max_examples=25, deadline=None)
def test_any_of_more_slices(entries):
    check_slice(entries)


def check_slice(entries):
    x = pt.dvector("x")
    cut = slice(*entries)
    value = np.arange(6.0)
    result, rest = pytensor.function([x], [x[cut], x[cut].set(-1.0)], mode=array_mode())(value)
    expected = value.copy()
    expected[cut] = -1
    np.testing.assert_array_equal(result, value[cut])
    np.testing.assert_array_equal(rest, expected)
