import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from support.cases.draws import draw
from synk.compile import ArrayLinker

DTYPES = ["float32", "complex128"]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("trans", ["N", "T", "C"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_triangular(compare, lower, unit, trans, dtype):
    a, b, v = pt.matrix("a", dtype=dtype), pt.matrix("b", dtype=dtype), pt.vector("v", dtype=dtype)
    options = {"lower": lower, "unit_diagonal": unit, "trans": trans}
    outputs = [pt.linalg.solve_triangular(a, x, **options) for x in (b, v)]
    value = draw(4, 4, dtype=dtype) + 2 * np.eye(4, dtype=dtype)
    for given in (value, np.asfortranarray(value), np.repeat(value, 2, axis=1)[:, ::2]):
        compare([a, b, v], outputs, [given, draw(4, 2, dtype=dtype), draw(4, dtype=dtype)], rtol=1e-3)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_solve(compare, lower, dtype):
    c, b, v = pt.matrix("c", dtype=dtype), pt.matrix("b", dtype=dtype), pt.vector("v", dtype=dtype)
    outputs = [pt.linalg.cho_solve((c, lower), x, b_ndim=x.ndim) for x in (b, v)]
    value = draw(4, 4, dtype=dtype) + 3 * np.eye(4, dtype=dtype)
    compare([c, b, v], outputs, [value, draw(4, 2, dtype=dtype), draw(4, dtype=dtype)], rtol=1e-3)


def test_singular_and_empty(compare):
    a, b = pt.dmatrices("ab")
    outputs = [pt.linalg.solve_triangular(a, b), pt.linalg.cho_solve((a, True), b)]
    compare([a, b], outputs[:1], [np.triu(np.ones((3, 3)), 1), draw(3, 2)])
    compare([a, b], outputs, [np.empty((0, 0)), np.empty((0, 2))])
    compare([a, b], outputs, [np.eye(3), np.empty((3, 0))])


@pytest.mark.parametrize("op", [SolveTriangular, CholeskySolve])
@pytest.mark.parametrize("b_ndim", [1, 2])
def test_right_hand_side_that_may_go(op, b_ndim):
    a, b = pt.dmatrix("a"), pt.tensor("b", shape=(None,) * b_ndim, dtype="float64")
    inputs = [a, pytensor.In(b, mutable=True)]
    output = pytensor.Out(op(b_ndim=b_ndim, overwrite_b=True)(a, b), borrow=True)
    function = pytensor.function(inputs, output, mode=Mode(ArrayLinker(), None), accept_inplace=True)
    value = np.asfortranarray(np.ones((3, 2)[:b_ndim]))
    result = function(2 * np.eye(3), value)
    np.testing.assert_allclose(result, np.full_like(value, 0.5 if op is SolveTriangular else 0.25))
    assert np.shares_memory(result, value)


@pytest.mark.parametrize("op", [SolveTriangular, CholeskySolve])
def test_shapes_must_fit(op):
    a, b = pt.dmatrices("ab")
    function = pytensor.function([a, b], op(b_ndim=2)(a, b), mode=Mode(ArrayLinker(), None))
    with pytest.raises(ValueError, match="square"):
        function(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(ValueError, match="do not fit"):
        function(np.eye(3), np.ones((2, 1)))
