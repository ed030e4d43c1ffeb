import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.basic import ExtractDiag
from pytensor.tensor.extra_ops import fill_diagonal, fill_diagonal_offset

from support.slow import slow
from synk.compile import ArrayLinker, array_mode


def test_filled_arrays(compare):
    x, n = pt.vector("x"), pt.lscalar("n")
    outputs = [
        pt.zeros((n, 2)),
        pt.ones(n),
        pt.alloc(x, n, 3),
        pt.full((n,), x[0]),
        pt.zeros_like(x),
        pt.alloc(x[0]),
    ]
    compare([x, n], outputs, [np.arange(3, dtype=x.dtype), np.asarray(4)])


def test_fill_by_undeclared_broadcasting_is_refused():
    x = pt.vector("x")
    function = pytensor.function([x], pt.alloc(x, 4, 3), mode=array_mode())
    with pytest.raises(ValueError, match="specify_broadcastable"):
        function(np.ones(1, x.dtype))


def test_uninitialised_array_has_its_shape():
    n = pt.lscalar("n")
    result = pytensor.function([n], pt.empty((n, 2), dtype="int8"), mode=array_mode())(3)
    assert (result.shape, result.dtype) == ((3, 2), "int8")


def test_vectors_ranges_and_diagonals(compare):
    x, n = pt.scalar("x", dtype="float32"), pt.lscalar("n")
    outputs = [
        pt.stack([x, x + 1]),
        pt.as_tensor([n, 2, n]),
        pt.arange(n),
        pt.arange(1, n, 2),
        pt.arange(n, 0, -1),
    ]
    outputs += [pt.arange(n, dtype="float32"), pt.eye(n), pt.eye(n, 3, 1, dtype="int8")]
    compare([x, n], outputs, [np.asarray(1.5, "float32"), np.asarray(5)])


@pytest.mark.parametrize("length", [-1, 0, 1, 6])
def test_triangular_window(compare, length):
    n = pt.lscalar("n")
    compare([n], [pt.bartlett(n)], [np.asarray(length)])


def test_triangles(compare):
    x, n = pt.fmatrix("x"), pt.lscalar("n")
    outputs = [pt.tri(n, 4, 1), pt.tril(x), pt.triu(x, 1), pt.diag(x[0]), pt.tri(n)]
    compare([x, n], outputs, [np.arange(12, dtype="float32").reshape(3, 4), np.asarray(3)])


SHAPES = [(3, 3), (2, 5), (5, 2), (1, 4), (0, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", slow("bool"), slow("complex128")])
def test_diagonals_of_matrices(compare, shape, dtype):
    x = pt.matrix("x", dtype=dtype)
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    outputs = [ExtractDiag(k, 0, 1, view)(x) for k in (-9, -1, 0, 1, 9) for view in (True, False)]
    compare([x], [*outputs, pt.diag(outputs[1])], [value])


def test_diagonals_of_other_axes(compare):
    x = pt.tensor4("x")
    value = np.arange(120, dtype=x.dtype).reshape(2, 3, 4, 5)
    compare([x], [x.diagonal(1, 3, 0), x.diagonal(-1, 1, 2), pt.trace(x, 0, 1, 2)], [value])


def test_a_view_may_be_written_to():
    x = pt.dmatrix("x")
    diagonal = ExtractDiag(0, 0, 1, view=True)(x)
    output = pt.set_subtensor(diagonal[0], 9.0)
    output.owner.op = type(output.owner.op)(output.owner.op.idx_list, inplace=True, set_instead_of_inc=True)
    inputs = [pytensor.In(x, mutable=True)]
    function = pytensor.function(inputs, output, mode=Mode(ArrayLinker(), None), accept_inplace=True)
    np.testing.assert_array_equal(function(np.eye(3)), [9, 1, 1])


def test_the_diagonal_of_what_must_not_be_written_to():
    x = pt.dmatrix("x")
    value = np.eye(3)
    value.flags.writeable = False
    function = pytensor.function([x], [x.diagonal() + 1, x.diagonal()], mode=array_mode())
    np.testing.assert_array_equal(function(value), [[2, 2, 2], [1, 1, 1]])


@pytest.mark.parametrize("shape", SHAPES)
def test_fill(compare, shape):
    x, value = pt.matrix("x", dtype="int32"), pt.scalar("value", dtype="int32")
    outputs = [fill_diagonal_offset(x, value, k) for k in (-2, -1, 0, 1)]
    values = [np.arange(np.prod(shape)).reshape(shape).astype("int32"), np.asarray(7, "int32")]
    compare([x, value], [fill_diagonal(x, value), *outputs], values)


def test_fill_copies_what_is_not_in_c_order(compare):
    x = pt.dmatrix("x")
    compare([x], [fill_diagonal(x.T, 5.0), pt.grad(fill_diagonal(x, 5.0).sum(), x)], [np.ones((2, 3))])


def test_fill_more_than_two_axes(compare):
    x = pt.dtensor3("x")
    compare([x], [fill_diagonal(x, 5.0)], [np.zeros((3, 3, 3))])
    with pytest.raises(ValueError, match="all lengths must be equal"):
        pytensor.function([x], fill_diagonal(x, 5.0), mode=array_mode())(np.zeros((3, 3, 2)))


def test_an_offset_outside_fills_nothing():
    # PyTensor's own implementation writes to another diagonal.
    x = pt.dmatrix("x")
    function = pytensor.function([x], fill_diagonal_offset(x, 1.0, 5), mode=array_mode())
    assert not function(np.zeros((3, 3))).any()
