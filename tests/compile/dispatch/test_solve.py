from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.linalg.solvers.tridiagonal import (
    LUFactorTridiagonal,
    tridiagonal_lu_factor,
    tridiagonal_lu_solve,
)

from support.cases.draws import draw
from support.slow import slow
from synk.compile import ArrayLinker, array_mode

STRUCTURES = ["gen", "sym", "her", "pos", "tridiagonal", "banded"]
DTYPES = ["float32", "complex128"]


def matrix(structure, lower=False, dtype="float64", n=5):
    """Return a matrix with 7 wherever the structure leaves it unread, and what it stands for."""
    x = draw(n, n, dtype=dtype)
    whole = {
        "gen": x,
        "banded": np.triu(np.tril(x, 2), -1),
        "tridiagonal": np.triu(np.tril(x, 1), -1),
        "sym": x + x.T,
        "her": x + x.conj().T,
        "pos": x @ x.conj().T + np.eye(n),
    }[structure].astype(dtype)
    given = whole.copy()
    if structure in ("sym", "her", "pos"):
        given[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = 7
    if structure == "tridiagonal":
        given[0, 2:] = 7
    return given, whole


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["C", slow("F"), "strided"])
def test_solve(compare, structure, lower, dtype, layout):
    a, b, v = pt.matrix("a", dtype=dtype), pt.matrix("b", dtype=dtype), pt.vector("v", dtype=dtype)
    options = {"assume_a": structure, "lower": lower}
    given, whole = matrix(structure, lower, dtype)
    given = np.repeat(given, 2, axis=1)[:, ::2] if layout == "strided" else given.copy(layout)
    values = [given, draw(5, 2, dtype=dtype), draw(5, dtype=dtype)]
    compare(
        [a, b, v], [Solve(b_ndim=2, **options)(a, b), Solve(b_ndim=1, **options)(a, v)], values, rtol=1e-3
    )
    function = pytensor.function([a, b], Solve(b_ndim=2, **options)(a, b), mode=Mode(ArrayLinker(), None))
    np.testing.assert_allclose(whole @ function(*values[:2]), values[1], atol=1e-4)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("flag", ["overwrite_a", "overwrite_b"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_input_that_may_go(structure, flag, order):
    a, b = [pt.zmatrix(name) for name in "ab"]
    op = Solve(assume_a=structure, b_ndim=2, **{flag: True})
    inputs = [pytensor.In(a, mutable=True), pytensor.In(b, mutable=True)]
    function = pytensor.function(inputs, op(a, b), mode=Mode(ArrayLinker(), None), accept_inplace=True)
    given, whole = matrix(structure, dtype="complex128")
    values = [given.copy(order), draw(5, 2, dtype="complex128").copy(order)]
    x = function(*values)
    np.testing.assert_allclose(whole @ x, draw(5, 2, dtype="complex128"))
    assert x.flags.writeable  # the next node may work in place
    kept, before = (
        (values[1], draw(5, 2, dtype="complex128")) if flag == "overwrite_a" else (values[0], given)
    )
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_singular_matrix_gives_nan(structure):
    a, b, v = pt.dmatrix("a"), pt.dmatrix("b"), pt.dvector("v")
    outputs = [Solve(assume_a=structure, b_ndim=2)(a, b), Solve(assume_a=structure, b_ndim=1)(a, v)]
    function = pytensor.function([a, b, v], outputs, mode=Mode(ArrayLinker(), None))
    results = function(np.zeros((3, 3)), draw(3, 2), draw(3))
    assert [result.shape for result in results] == [(3, 2), (3,)]
    assert all(np.isnan(result).all() for result in results)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_nothing_and_one(compare, structure):
    a, b = pt.dmatrices("ab")
    op = Solve(assume_a=structure, b_ndim=2)
    compare([a, b], [op(a, b)], [np.empty((0, 0)), np.empty((0, 2))])
    compare([a, b], [op(a, b)], [np.eye(3), np.empty((3, 0))])
    compare([a, b], [op(a, b)], [np.full((1, 1), 4.0), np.full((1, 2), 2.0)])


@pytest.mark.parametrize(
    ("left", "right"), [("float32", "float64"), ("int64", "float32"), ("float64", "complex64")]
)
def test_mixed_dtypes(compare, left, right):
    a, b = pt.matrix("a", dtype=left), pt.matrix("b", dtype=right)
    values = [(4 * (draw(3, 3) + draw(3, 3).T)).astype(left), draw(3, 2, dtype=right)]
    compare([a, b], [pt.linalg.solve(a, b), pt.linalg.solve(a, b, assume_a="sym")], values, rtol=1e-4)


def test_shapes_must_fit():
    a, b = pt.dmatrices("ab")
    function = pytensor.function([a, b], pt.linalg.solve(a, b), mode=array_mode())
    with pytest.raises(ValueError, match="square"):
        function(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"shape \(3, 3\) and a right-hand side of shape \(2, 1\)"):
        function(np.eye(3), np.ones((2, 1)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_tridiagonal_factors_and_solutions(compare, dtype, transposed, batch):
    a = pt.tensor("a", shape=(None,) * (len(batch) + 2), dtype=dtype)
    b = pt.tensor("b", shape=(None,) * (len(batch) + 2), dtype=dtype)
    factors = tridiagonal_lu_factor(a)
    solutions = [
        tridiagonal_lu_solve(factors, b, b_ndim=2, transposed=transposed),
        tridiagonal_lu_solve(factors, b[..., 0], b_ndim=1, transposed=transposed),
    ]
    values = [draw(*batch, 5, 5, dtype=dtype), draw(*batch, 5, 3, dtype=dtype)]
    compare([a, b], [*factors, *solutions], values, rtol=1e-3)


def test_diagonals_that_may_go():
    inputs = pt.dvectors("ldu")
    mutable = [pytensor.In(x, mutable=True) for x in inputs]
    op = LUFactorTridiagonal(overwrite_dl=True, overwrite_d=True, overwrite_du=True)
    mode = Mode(ArrayLinker(), None)
    function = pytensor.function(mutable, op(*inputs), mode=mode, accept_inplace=True)
    given = [draw(3), 5 + draw(4), draw(3) + 1]
    before = [x.copy() for x in given]
    kept = pytensor.function(inputs, LUFactorTridiagonal()(*inputs), mode=mode)(*before)
    for result, expected in zip(function(*given), kept, strict=True):
        np.testing.assert_array_equal(result, expected)
    assert not np.array_equal(given[1], before[1])


@pytest.mark.parametrize(
    ("dtype", "lower"),
    [
        *(("float32", True), ("complex128", False)),
        *(slow("float32", False), slow("complex128", True)),
    ],
)
def test_triangular(compare, lower, dtype):
    a, b, v = pt.matrix("a", dtype=dtype), pt.matrix("b", dtype=dtype), pt.vector("v", dtype=dtype)
    outputs = [
        pt.linalg.solve_triangular(a, x, lower=lower, unit_diagonal=unit, trans=trans)
        for x, unit, trans in product((b, v), (True, False), "NTC")
    ]
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
def test_shapes_of_factors_must_fit(op):
    a, b = pt.dmatrices("ab")
    function = pytensor.function([a, b], op(b_ndim=2)(a, b), mode=Mode(ArrayLinker(), None))
    with pytest.raises(ValueError, match="square"):
        function(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(ValueError, match="do not fit"):
        function(np.eye(3), np.ones((2, 1)))
