import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.linalg.constructors import BlockDiagonal
from pytensor.tensor.linalg.inverse import TensorInv
from pytensor.tensor.linalg.products import Expm
from pytensor.tensor.linalg.solvers.lstsq import TensorSolve, lstsq
from pytensor.tensor.linalg.summary import SLogDet

from synk.compile import array_mode

DTYPES = ["float32", "float64", "complex128", "int64", "int8"]


def draw(*shape, dtype="float64"):
    values = 3 * np.random.default_rng(sum(shape)).normal(size=shape)
    return (values * (1 + 0.5j) if dtype.startswith("complex") else values).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_summaries_and_inverses(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    outputs = [pt.linalg.det(x), *SLogDet()(x), pt.linalg.inv(x), pt.linalg.pinv(x[:, :2])]
    # PyTensor computes small integers in float64 and forgets to say so.
    outputs = [pt.cast(y, "complex128" if dtype.startswith("complex") else "float64") for y in outputs]
    compare([x], outputs, [draw(4, 4, dtype=dtype)], rtol=1e-4)


def test_half_precision():
    x = pt.matrix("x", dtype="float16")
    value = draw(3, 3, dtype="float16")
    inverse, determinant = pytensor.function([x], [pt.linalg.inv(x), pt.linalg.det(x)], mode=array_mode())(
        value
    )
    assert inverse.dtype == determinant.dtype == np.float32
    np.testing.assert_allclose(inverse, np.linalg.inv(value.astype("float32")), rtol=1e-5)


def test_no_inverse():
    x = pt.dmatrix("x")
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        pytensor.function([x], pt.linalg.inv(x), mode=array_mode())(np.zeros((2, 2)))


def test_hermitian_pseudo_inverse(compare):
    x = pt.dmatrix("x")
    value = draw(4, 4)
    compare([x], [pt.linalg.pinv(x, hermitian=True)], [value + value.T])


def test_tensor_equations(compare):
    a, b = pt.dtensor4("a"), pt.dmatrix("b")
    values = [draw(2, 3, 3, 2), draw(2, 3)]
    compare([a, b], [TensorInv(2)(a), TensorSolve()(a, b)], values)
    compare([a, b], [TensorSolve(axes=(0, 1))(a, b)], [draw(3, 2, 2, 3), values[1]])


def test_integer_tensor_equations_have_fractional_solutions(compare):
    a, b = pt.ltensor4("a"), pt.lmatrix("b")
    values = [draw(2, 3, 3, 2, dtype="int64"), draw(2, 3, dtype="int64")]
    compare([a, b], [TensorInv(2)(a), TensorSolve()(a, b)], values)


@pytest.mark.parametrize("columns", [1, 2])
def test_least_squares(compare, columns):
    x, y, rcond = pt.dmatrix("x"), pt.dmatrix("y"), pt.dscalar("rcond")
    solution, residuals, rank, values = lstsq(x, y, rcond)
    outputs = [solution, residuals, pt.cast(rank, "int64"), values]
    compare([x, y, rcond], outputs, [draw(5, 3), draw(5, columns), np.asarray(1e-8)])


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_exponential(compare, dtype, n):
    x, batch = pt.matrix("x", dtype=dtype), pt.tensor3("batch", dtype=dtype)
    values = [draw(n, n, dtype=dtype), draw(2, n, n, dtype=dtype)]
    compare([x, batch], [pt.linalg.expm(x), pt.linalg.expm(batch)], values, rtol=1e-4, atol=1e-4)


def test_exponential_of_an_input_that_may_go():
    x = pt.dmatrix("x")
    inputs = [pytensor.In(x, mutable=True)]
    function = pytensor.function(inputs, pt.linalg.expm(x), mode=array_mode(), accept_inplace=True)
    assert isinstance(function.maker.fgraph.outputs[0].owner.op, Expm)
    np.testing.assert_allclose(function(np.diag([0.0, 1.0])), np.diag([1, np.e]))


def test_block_diagonal(compare):
    x, y = pt.fmatrix("x"), pt.dmatrix("y")
    compare([x, y], [BlockDiagonal(3)(x, y, x)], [draw(2, 3, dtype="float32"), draw(1, 2)])
    batch, one = pt.dtensor3("batch"), pt.dmatrix("one")
    compare([batch, one], [pt.linalg.block_diag(batch, one)], [draw(4, 2, 3), draw(0, 2)])
