import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.linalg.decomposition.eigen import Eigh, Eigvalsh, eigvalsh
from pytensor.tensor.linalg.decomposition.schur import QZ, Schur
from pytensor.tensor.linalg.decomposition.svd import SVD
from pytensor.tensor.linalg.solvers import linear_control
from pytensor.tensor.linalg.solvers.linear_control import TRSYL

from support.cases.draws import draw
from support.slow import slow
from synk.compile import ArrayLinker

DTYPES = ["float32", "float64", "complex64", "complex128", "int64"]
OFTEN = ["float32", *map(slow, ["float64", "complex64"]), "complex128", "int64"]


def wide(*shape, dtype="float64"):
    values = 3 * np.random.default_rng(sum(shape)).normal(size=(2, *shape))
    return (values[0] + 1j * values[1] if dtype.startswith("complex") else values[0]).astype(dtype)


def hermitian(*shape, dtype="float64"):
    x = wide(*shape, dtype=dtype)
    return x + x.swapaxes(-1, -2).conj()


@pytest.mark.parametrize("dtype", OFTEN)
@pytest.mark.parametrize("shape", [slow((4, 4)), (5, 3), (3, 5), (2, 5, 3)])
def test_svd(compare, dtype, shape):
    x = pt.tensor("x", shape=(None,) * len(shape), dtype=dtype)
    outputs = [*pt.linalg.svd(x), *pt.linalg.svd(x, full_matrices=False)]
    compare([x], outputs, [wide(*shape, dtype=dtype)], rtol=1e-3, atol=1e-5)
    compare([x], [pt.linalg.svd(x, compute_uv=False)], [wide(*shape, dtype=dtype)], rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eig_is_complex(compare, dtype):
    x, batch = pt.matrix("x", dtype=dtype), pt.tensor3("batch", dtype=dtype)
    values = [hermitian(3, 3, dtype=dtype), wide(2, 3, 3, dtype=dtype)]
    compare([x, batch], [*pt.linalg.eig(x), *pt.linalg.eig(batch)], values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", OFTEN)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("driver", ["evr", "evd"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4)])
def test_eigh_reads_one_triangle(compare, dtype, lower, driver, shape):
    x = pt.tensor("x", shape=(None,) * len(shape), dtype=dtype)
    value = hermitian(*shape, dtype=dtype)
    value[..., 0, 3] += lower
    value[..., 3, 0] += not lower
    values, vectors = pt.linalg.eigh(x, lower=lower, driver=driver)
    # Vectors have either sign; complex ones any phase, and PyTensor declares them real.
    vectors = [] if dtype.startswith("complex") else [abs(vectors)]
    outputs = [values, *vectors, eigvalsh(x, None, lower=lower)]
    compare([x], outputs, [value], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4)])
def test_complex_vectors(shape):
    x = pt.tensor("x", shape=(None,) * len(shape), dtype="complex128")
    value = hermitian(*shape, dtype="complex128")
    values, vectors = pytensor.function([x], pt.linalg.eigh(x), mode=Mode(ArrayLinker(), None))(value)
    np.testing.assert_allclose(value @ vectors, vectors * values[..., None, :], atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_generalized(compare, dtype, lower, batch):
    a, b = [pt.tensor(name, shape=(None,) * (len(batch) + 2), dtype=dtype) for name in "ab"]
    outputs = [*pt.linalg.eigh(a, b, lower=lower), eigvalsh(a, b, lower=lower)]
    values = (
        hermitian(*batch, 4, 4, dtype=dtype),
        hermitian(*batch, 4, 4, dtype=dtype) + 20 * np.eye(4, dtype=dtype),
    )
    compare([a, b], outputs, values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "op", [Eigh(), Eigh(lower=False, driver="evd"), Eigvalsh(), Eigvalsh(lower=False)], ids=str
)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("n_inputs", "flag"), [(1, "overwrite_a"), (2, "overwrite_a"), (2, "overwrite_b")])
def test_input_that_may_go(op, order, n_inputs, flag):
    a, b = pt.dmatrices("ab")
    mode, inputs = Mode(ArrayLinker(), None), [a, b][:n_inputs]
    op_in_place = type(op)(**op._props_dict() | {flag: True})
    mutable = [pytensor.In(x, mutable=True) for x in inputs]
    in_place = pytensor.function(mutable, op_in_place(*inputs), mode=mode, accept_inplace=True)
    kept = pytensor.function(inputs, op(*inputs), mode=mode)
    given = [hermitian(4, 4), hermitian(4, 4) + 20 * np.eye(4)][:n_inputs]
    given[0][0, 3] += op.lower
    given[0][3, 0] += not op.lower
    results = in_place(*[x.copy(order) for x in given]), kept(*given)
    for result, expected in zip(*[r if isinstance(r, list) else [r] for r in results], strict=True):
        # Eigenvectors have either sign.
        np.testing.assert_allclose(abs(result), abs(expected))


def test_svd_of_an_input_that_may_go():
    x = pt.dmatrix("x")
    op = SVD(compute_uv=False, overwrite_a=True)
    inputs = [pytensor.In(x, mutable=True)]
    function = pytensor.function(inputs, op(x), mode=Mode(ArrayLinker(), None), accept_inplace=True)
    np.testing.assert_allclose(function(np.diag([1.0, 3.0])), [3, 1])


def test_nan_has_no_spectrum():
    x = pt.dmatrix("x")
    for output in (pt.linalg.eigh(x)[0], pt.linalg.eig(x)[0]):
        with pytest.raises(ValueError, match="infs or NaNs"):
            pytensor.function([x], output, mode=Mode(ArrayLinker(), None))(np.full((3, 3), np.nan))


# --- Schur forms ----------------------------------------------------------------------------------


SORTS = [None, "lhp", "rhp", "iuc", "ouc"]
OFTEN_SORTS = [None, "lhp", *map(slow, ["rhp", "iuc"]), "ouc"]
DTYPES_OF_SCHUR = ["float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES_OF_SCHUR)
@pytest.mark.parametrize("output", ["real", "complex"])
@pytest.mark.parametrize("sort", OFTEN_SORTS)
def test_schur(compare, dtype, output, sort):
    x, batch = pt.matrix("x", dtype=dtype), pt.tensor3("batch", dtype=dtype)
    outputs = [form for x in (x, batch) for form in pt.linalg.schur(x, output=output, sort=sort)]
    values = [draw(5, 5, dtype=dtype), draw(2, 4, 4, dtype=dtype)]
    compare([x, batch], outputs, values, rtol=1e-3, atol=1e-5)


def test_schur_of_hard_cases(compare):
    x = pt.dmatrix("x")
    compare([x], pt.linalg.schur(x), [np.full((3, 3), np.inf)])
    compare([x], pt.linalg.schur(x), [np.empty((0, 0))])
    y = pt.lmatrix("y")
    compare([y], pt.linalg.schur(y), [np.array([[1, 2], [3, 4]])])


@pytest.mark.parametrize("dtype", DTYPES_OF_SCHUR)
@pytest.mark.parametrize("output", ["real", "complex"])
@pytest.mark.parametrize("sort", OFTEN_SORTS)
def test_qz(compare, dtype, output, sort):
    a, b = pt.matrix("a", dtype=dtype), pt.matrix("b", dtype=dtype)
    outputs = pt.linalg.qz(a, b, output=output, sort=sort, return_eigenvalues=True)
    values = [draw(5, 5, dtype=dtype), draw(6, 5, dtype=dtype)[1:]]
    compare([a, b], outputs, values, rtol=1e-2, atol=1e-4)
    compare([a, b], pt.linalg.qz(a, b, output=output, sort=sort), values, rtol=1e-2, atol=1e-4)


def test_infinite_eigenvalues(compare):
    a, b = pt.dmatrices("ab")
    values = [np.triu(draw(4, 4)), np.diag([1.0, 0.0, -2.0, 0.0])]
    for sort in SORTS[1:]:
        compare([a, b], pt.linalg.qz(a, b, sort=sort, return_eigenvalues=True), values)


@pytest.mark.parametrize(
    "op", [Schur(overwrite_a=True), QZ(overwrite_a=True, overwrite_b=True, sort="lhp")], ids=str
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_schur_input_that_may_go(op, order):
    inputs = pt.dmatrices("ab")[: 1 + isinstance(op, QZ)]
    mode = Mode(ArrayLinker(), None)
    mutable = [pytensor.In(x, mutable=True) for x in inputs]
    in_place = pytensor.function(mutable, op(*inputs), mode=mode, accept_inplace=True)
    flags = {name: False for name in op._props_dict() if name.startswith("overwrite")}
    kept = pytensor.function(inputs, type(op)(**op._props_dict() | flags)(*inputs), mode=mode)
    given = [draw(4, 4), draw(4, 4).T.copy()][: len(inputs)]
    before = [x.copy(order) for x in given]
    for result, expected in zip(in_place(*[x.copy(order) for x in given]), kept(*before), strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-12)
    np.testing.assert_array_equal(before, given)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sylvester(compare, dtype):
    a, b, c = [pt.matrix(name, dtype=dtype) for name in "abc"]
    values = [
        draw(4, 4, dtype=dtype),
        draw(3, 3, dtype=dtype) + 4 * np.eye(3, dtype=dtype),
        draw(4, 3, dtype=dtype),
    ]
    compare([a, b, c], [linear_control.solve_sylvester(a, b, c)], values, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_lyapunov_and_riccati(compare):
    a, q = pt.dmatrices("aq")
    values = [0.3 * draw(3, 3), np.eye(3)]
    outputs = [
        linear_control.solve_continuous_lyapunov(a, q),
        linear_control.solve_discrete_lyapunov(a, q, method="bilinear"),
        linear_control.solve_discrete_lyapunov(a, q, method="direct"),
        linear_control.solve_discrete_are(a, q, q, q),
    ]
    compare([a, q], outputs, values, rtol=1e-5)


@pytest.mark.parametrize("overwrite", [False, True])
def test_triangular_sylvester(overwrite):
    a, b, c = pt.dmatrices("abc")
    op, inputs = TRSYL(overwrite_c=overwrite), [a, b, pytensor.In(c, mutable=overwrite)]
    function = pytensor.function(inputs, op(a, b, c), mode=Mode(ArrayLinker(), None), accept_inplace=True)
    left, right = np.triu(draw(3, 3)), np.triu(draw(2, 2)) + 5 * np.eye(2)
    given = np.asfortranarray(draw(3, 2))
    x = function(left, right, given)
    np.testing.assert_allclose(left @ x + x @ right, draw(3, 2))
    assert np.array_equal(given, draw(3, 2)) != overwrite
    assert function(left, right, np.empty((3, 0))).shape == (3, 0)
    huge = np.full((1, 1), 1e300)  # LAPACK scales it down
    np.testing.assert_allclose(function(np.eye(1) / 4, np.eye(1) / 4, huge.copy()), 2 * huge)
