import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import cpu_contiguous

from synk.compile import array_funcify, array_mode, emit


def test_axes_are_permuted_added_and_dropped(compare):
    x, s = pt.tensor("x", shape=(2, 1, 3)), pt.scalar("s")
    outputs = [x.dimshuffle(2, 0, 1), x.dimshuffle(2, "x", 0), x.dimshuffle("x", 0, 1, 2), x.squeeze(1)]
    outputs += [s.dimshuffle("x", "x"), s.dimshuffle(), x[:, 0].T, pt.add(s, 1).dimshuffle("x")]
    compare([x, s], outputs, [np.arange(6, dtype=x.dtype).reshape(2, 1, 3), np.asarray(2, s.dtype)])


orders = given(st.permutations(range(4)), st.lists(st.integers(0, 4), max_size=3))


@orders
@settings(max_examples=20)
def test_any_order_of_axes(permutation, new_axes):
    check_order(permutation, new_axes)


@pytest.mark.slow
@orders
def test_any_of_more_orders_of_axes(permutation, new_axes):
    check_order(permutation, new_axes)


def check_order(permutation, new_axes):
    order = list(permutation)
    for position in new_axes:
        order.insert(position, "x")
    x = pt.tensor("x", shape=(None,) * 4)
    program = emit(FunctionGraph([x], [DimShuffle(input_ndim=4, new_order=order)(x)]), np)
    value = np.arange(120.0).reshape(2, 3, 4, 5)
    (result,) = program(value)
    expected = value.transpose(permutation).reshape([1 if a == "x" else value.shape[a] for a in order])
    np.testing.assert_array_equal(result, expected)
    assert np.shares_memory(result, value)


def test_only_length_one_is_dropped():
    x = pt.matrix("x")
    program = emit(FunctionGraph([x], [DimShuffle(input_ndim=2, new_order=(0,))(x)]), np)
    with pytest.raises(ValueError, match="cannot drop axis 1 of length 3"):
        program(np.zeros((2, 3)))


def test_axes_that_lie_apart_are_joined_by_reshape(compare):
    x = pt.tensor3("x")
    columns = x[::-1].transpose(2, 0, 1)
    outputs = [
        columns.reshape((x.shape[2], -1)),
        columns.reshape((columns.shape[0], x.shape[0] * x.shape[1])) @ x[::-1].reshape((-1, x.shape[2])),
        columns.reshape((x.shape[2], x.shape[0], x.shape[1], 1)),
        columns.reshape((-1, x.shape[0])),
    ]
    compare([x], outputs, [np.arange(24, dtype=x.dtype).reshape(2, 4, 3)])
    with pytest.raises(ValueError, match="reshape"):
        pytensor.function([x], columns.reshape((3, 7)), mode=array_mode())(np.zeros((2, 4, 3), x.dtype))


def test_reshape(compare):
    x, n, s = pt.matrix("x"), pt.lscalar("n"), pt.scalar("s")
    outputs = [
        x.reshape((n, -1)),
        x.ravel(),
        x.T.reshape((-1, 2)),
        s.reshape((1, 1)),
        x.reshape((1, 2, n, 1)),
    ]
    compare(
        [x, n, s], outputs, [np.arange(6, dtype=x.dtype).reshape(2, 3), np.asarray(3), np.asarray(1, s.dtype)]
    )


def test_axes_are_joined_and_split(compare):
    x, shape = pt.tensor3("x"), pt.lvector("shape")
    outputs = [
        pt.join_dims(x, 1, 2),
        pt.join_dims(x),
        pt.join_dims(x, 1, 0),
        pt.split_dims(x, (2, 2), axis=1),
    ]
    compare([x, shape], outputs, [np.arange(24, dtype=x.dtype).reshape(2, 4, 3), np.array([2, 2])])
    (joined,) = emit(FunctionGraph([x], [pt.join_dims(x, 1, 2)]), np)(np.zeros((0, 4, 3)))
    assert joined.shape == (0, 12)


def test_shapes(compare):
    x = pt.matrix("x")
    compare([x], [x.shape, x.shape[0], x.shape[1] * 2, x.size], [np.zeros((2, 3), x.dtype)])


def test_shape_is_checked(compare):
    x = pt.matrix("x")
    checked = pt.specify_shape(x, (None, 3)) + 1
    compare([x], [checked], [np.zeros((2, 3), x.dtype)])
    with pytest.raises(AssertionError, match=r"got shape \(2, 4\), expected \(None, 3\)"):
        pytensor.function([x], checked, mode=array_mode())(np.zeros((2, 4), x.dtype))


def test_contiguous(compare):
    x = pt.dmatrix("x")
    value = np.arange(6.0).reshape(2, 3)
    compare([x], [cpu_contiguous(x) + 1, cpu_contiguous(x.T), cpu_contiguous(x[0, 0])], [value])
    in_order = array_funcify(cpu_contiguous, cpu_contiguous(x).owner, np)
    assert in_order(value) is value
    assert in_order(value.T).flags.c_contiguous


def test_join(compare):
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="int8")
    outputs = [pt.join(0, x, y), pt.concatenate([x, y, x], axis=1), pt.stack([x, x], axis=1), pt.join(0, x)]
    compare([x, y], outputs, [np.ones((2, 3), "float32"), np.full((2, 3), 2, "int8")])


def test_split(compare):
    x, lengths = pt.matrix("x"), pt.lvector("lengths")
    outputs = [
        *pt.split(x, lengths, n_splits=3, axis=1),
        *pt.split(x, [1, 1], axis=0),
        pt.split(x, [2], axis=0),
    ]
    compare([x, lengths], outputs, [np.arange(8, dtype=x.dtype).reshape(2, 4), np.array([1, 0, 3])])


@pytest.mark.parametrize(
    ("lengths", "match"), [([1, 2], "sum to 3"), ([5, -1], "negative"), ([4], "1 lengths for 2")]
)
def test_split_lengths_are_checked(lengths, match):
    x, n = pt.vector("x"), pt.lvector("n")
    function = pytensor.function([x, n], pt.split(x, n, n_splits=2), mode=array_mode())
    with pytest.raises(ValueError, match=match):
        function(np.zeros(4, x.dtype), np.array(lengths))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64"])
def test_all_dtypes(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    outputs = [pt.join(1, x, x), *pt.split(x, [1, 2], n_splits=2, axis=1)]
    compare([x], outputs, [np.arange(6).reshape(2, 3).astype(dtype)])
