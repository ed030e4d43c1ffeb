import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.decomposition.lu import LU, LUFactor, pivot_to_permutation
from pytensor.tensor.linalg.decomposition.qr import QR

from support.cases.draws import draw
from synk.compile import ArrayLinker

DTYPES = ["float32", "float64", "complex64", "complex128"]


def definite(n, dtype="float64"):
    x = draw(n, n, dtype=dtype)
    return (x @ x.conj().T + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_reads_one_triangle(compare, dtype, lower):
    x, batch = pt.matrix("x", dtype=dtype), pt.tensor3("batch", dtype=dtype)
    value = definite(4, dtype)
    value[np.triu_indices(4, 1) if lower else np.tril_indices(4, -1)] = 7
    outputs = [pt.linalg.cholesky(x, lower=lower), pt.linalg.cholesky(batch, lower=lower)]
    for given in (value, np.asfortranarray(value), np.repeat(value, 2, axis=1)[:, ::2]):
        compare([x, batch], outputs, [given, np.stack([given, given])], rtol=1e-4)


def test_cholesky_without_factor(compare):
    x = pt.dmatrix("x")
    compare([x], [pt.linalg.cholesky(x)], [-np.eye(3)])
    compare([x], [pt.linalg.cholesky(x)], [np.empty((0, 0))])
    function = pytensor.function([x], pt.linalg.cholesky(x), mode=Mode(ArrayLinker(), None))
    with pytest.raises(ValueError, match="square"):
        function(np.ones((2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(compare, dtype):
    x, batch = pt.matrix("x", dtype=dtype), pt.tensor3("batch", dtype=dtype)
    variants = [{}, {"permute_l": True}, {"p_indices": True}]
    outputs = [factor for x in (x, batch) for keywords in variants for factor in pt.linalg.lu(x, **keywords)]
    compare([x, batch], outputs, [draw(4, 4, dtype=dtype), draw(2, 4, 4, dtype=dtype)], rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_factor_and_permutations(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    packed, pivots = pt.linalg.lu_factor(x)
    outputs = [packed, pivots, pivot_to_permutation(pivots), pivot_to_permutation(pivots, inverse=True)]
    compare([x], outputs, [draw(5, 5, dtype=dtype)], rtol=1e-4)


def test_lu_factor_of_hard_cases(compare):
    x = pt.dmatrix("x")
    compare([x], pt.linalg.lu_factor(x), [np.ones((3, 3))])  # singular
    compare([x], pt.linalg.lu_factor(x), [np.empty((0, 0))])
    y = pt.lmatrix("y")
    compare([y], pt.linalg.lu_factor(y), [np.array([[1, 2], [3, 4]])])  # factors of integers are not integers


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5)])
@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("mode", ["full", "economic", "r", "raw"])
def test_qr(compare, dtype, shape, pivoting, mode):
    x = pt.matrix("x", dtype=dtype)
    outputs = pt.linalg.qr(x, mode=mode, pivoting=pivoting)
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    compare([x], outputs, [draw(*shape, dtype=dtype)], rtol=1e-3, atol=1e-5)


def test_batches_of_qr(compare):
    x = pt.dtensor3("x")
    compare(
        [x], [*pt.linalg.qr(x), *pt.linalg.qr(x, mode="economic"), pt.linalg.qr(x, mode="r")], [draw(2, 5, 3)]
    )


IN_PLACE = [
    Cholesky(overwrite_a=True),
    Cholesky(lower=False, overwrite_a=True),
    LU(overwrite_a=True),
    LU(overwrite_a=True, permute_l=True),
    LUFactor(overwrite_a=True),
    QR(overwrite_a=True),
    QR(overwrite_a=True, mode="raw", pivoting=True),
]


@pytest.mark.parametrize("op", IN_PLACE, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_input_that_may_go(op, order):
    x = pt.zmatrix("x")
    mode = Mode(ArrayLinker(), None)
    in_place = pytensor.function([pytensor.In(x, mutable=True)], op(x), mode=mode, accept_inplace=True)
    kept = pytensor.function([x], type(op)(**op._props_dict() | {"overwrite_a": False})(x), mode=mode)
    value = definite(4, "complex128")
    for result, expected in zip(listed(in_place(value.copy(order))), listed(kept(value)), strict=True):
        np.testing.assert_allclose(result, expected)
    np.testing.assert_array_equal(value, definite(4, "complex128"))


def test_cholesky_uses_the_memory_that_may_go():
    x = pt.dmatrix("x")
    inputs = [pytensor.In(x, mutable=True)]
    output = pytensor.Out(Cholesky(overwrite_a=True)(x), borrow=True)
    function = pytensor.function(inputs, output, mode=Mode(ArrayLinker(), None), accept_inplace=True)
    for order in "CF":
        value = definite(4).copy(order)
        assert np.shares_memory(function(value), value)


def listed(results):
    return results if isinstance(results, list) else [results]
