import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.blas import BatchedDot, gemm_inplace, gemm_no_inplace, gemv_inplace, gemv_no_inplace

from support.cases.draws import draw
from synk.compile import ArrayLinker, array_mode, compat


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_products(compare, dtype):
    x, y, v = pt.matrix("x", dtype=dtype), pt.matrix("y", dtype=dtype), pt.vector("v", dtype=dtype)
    outputs = [
        x @ y,
        pt.dot(x, v),
        pt.dot(v, y.T),
        pt.dot(v, v),
        2 * (x @ y),
        x.T @ x - 3 * (y @ y.T),
        x @ y + x[:, [0]],
    ]
    values = [3 * draw(5, 4), 3 * draw(4, 4), 3 * draw(4)]
    compare([x, y, v], outputs, [value.astype(dtype) for value in values], rtol=1e-4, atol=1e-4)


def test_empty_products_are_zero(compare):
    x, y = pt.matrix("x"), pt.matrix("y")
    compare([x, y], [x @ y], [np.ones((3, 0), x.dtype), np.ones((0, 2), x.dtype)])


@pytest.mark.parametrize("op", [gemm_no_inplace, gemm_inplace])
@pytest.mark.parametrize("alpha", [1.0, -2.0])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_gemm(op, alpha, beta):
    z, x, y = pt.dmatrices("zxy")
    function = compile_update(z, [x, y], op(z, np.asarray(alpha), x, y, np.asarray(beta)), op.inplace)
    target, left, right = draw(3, 4), draw(3, 5), draw(5, 4)
    expected = beta * target + alpha * left @ right
    if beta == 0:
        target[:] = np.nan  # uninitialised memory
    result = function(target, left, right)
    np.testing.assert_allclose(result, expected)
    assert np.shares_memory(result, target) == op.inplace


@pytest.mark.parametrize("op", [gemv_no_inplace, gemv_inplace])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_gemv(op, beta):
    y, matrix, x = pt.dvector("y"), pt.dmatrix("matrix"), pt.dvector("x")
    function = compile_update(y, [matrix, x], op(y, np.asarray(2.0), matrix, x, np.asarray(beta)), op.inplace)
    target, left, right = draw(3), draw(3, 5), draw(5)
    expected = beta * target + 2 * left @ right
    if beta == 0:
        target[:] = np.nan
    np.testing.assert_allclose(function(target, left, right), expected)
    with pytest.raises(ValueError, match="does not map 4 values to 3"):
        function(draw(3), left, draw(4))


def compile_update(target, others, output, inplace):
    inputs = [pytensor.In(target, mutable=inplace, borrow=True), *others]
    mode = array_mode().excluding("BlasOpt")
    return pytensor.function(inputs, pytensor.Out(output, borrow=True), mode=mode, accept_inplace=True)


@pytest.mark.skipif(not hasattr(compat.Ger, "perform"), reason="this PyTensor has no Ger")
@pytest.mark.parametrize("destructive", [False, True])
def test_ger(destructive):
    matrix, x, y = pt.dmatrix("matrix"), pt.dvector("x"), pt.dvector("y")
    output = compat.Ger(destructive)(matrix, pt.constant(np.asarray(2.0)), x, y)
    target, left, right = draw(3, 4), draw(3), draw(4)
    expected = target + 2 * np.outer(left, right)
    np.testing.assert_allclose(
        compile_update(matrix, [x, y], output, destructive)(target, left, right), expected
    )


def test_batches_of_products(compare):
    x, y, z = pt.tensor3("x"), pt.tensor3("y"), pt.matrix("z")
    values = [draw(2, 3, 4, dtype=x.dtype), draw(2, 4, 5, dtype=x.dtype), draw(4, 5, dtype=x.dtype)]
    compare([x, y, z], [x @ y, x @ z, BatchedDot()(x, y)], values, rtol=1e-5)


def test_batches_must_agree():
    x, y = pt.tensor3("x"), pt.tensor3("y")
    values = np.ones((2, 3, 4), x.dtype), np.ones((1, 4, 5), x.dtype)
    with pytest.raises(TypeError, match="batches of 2 and 1"):
        pytensor.function([x, y], BatchedDot()(x, y), mode=array_mode())(*values)
    with pytest.raises(ValueError, match="specify_broadcastable"):
        pytensor.function([x, y], x @ y, mode=Mode(ArrayLinker(), None))(*values)


def test_batches_of_inverses(compare):
    x = pt.tensor3("x", dtype="float64")
    value = draw(2, 3, 3) + 4 * np.eye(3)
    compare([x], [pt.linalg.inv(x), pt.linalg.det(x)], [value])
