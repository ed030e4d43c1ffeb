import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.linalg.solvers.tridiagonal import (
    LUFactorTridiagonal,
    tridiagonal_lu_factor,
    tridiagonal_lu_solve,
)

from synk.compile import ArrayLinker


def draw(*shape, dtype="float64"):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_factor_and_solve(compare, dtype, transposed, batch):
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
