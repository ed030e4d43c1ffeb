"""Products of vectors and matrices, which BLAS computes where it can read them."""

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.slow import slow
from synk.compile import array_funcify, array_mode

LENGTHS = list(itertools.product((0, 1, 5), (0, 1, 7), (0, 1, 4)))


def laid_out(shape, dtype):
    """Yield arrays of a shape that lie in many ways."""
    rng = np.random.default_rng(sum(shape))
    large = rng.normal(size=[2 * n + 1 for n in shape]).astype(dtype)
    part = large[tuple(slice(n) for n in shape)]
    yield part.copy("C")
    yield part.copy("F")
    yield part
    yield large[tuple(slice(None, 2 * n, 2) for n in shape)]
    yield part[tuple(slice(None, None, -1) for _ in shape)]
    yield np.broadcast_to(part[:1], shape) if shape[0] else part


def compiled(left, right, dtype):
    """Return the C function of a product of arrays with so many axes, which takes the result's array too."""
    x, y = (pt.tensor(shape=(None,) * ndim, dtype=dtype) for ndim in (left, right))
    function = pytensor.function([x, y], pt.matmul(x, y), mode=array_mode())
    (node,) = function.maker.fgraph.apply_nodes
    order = [function.maker.fgraph.inputs.index(variable) for variable in node.inputs]
    native = array_funcify(node.op, node, np).native
    return lambda *given: native.call(*(given[k] for k in order), given[-1])


# Each dtype meets two of the routines of BLAS; all meet both in `make test-all`.
@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        *((1, 1, "float64"), (1, 2, "float64"), (2, 1, "float32"), (3, 3, "float32")),
        *(slow(1, 1, "float32"), slow(1, 2, "float32"), slow(2, 1, "float64"), slow(3, 3, "float64")),
    ],
)
def test_factors_and_results_may_lie_in_any_way(left, right, dtype, capfd):
    region = compiled(left, right, dtype)
    for m, k, n in LENGTHS:
        first, second = (m, k)[-left:] if left < 3 else (2, m, k), (k, n)[:right] if right < 3 else (2, k, n)
        pairs = itertools.product(enumerate(laid_out(first, dtype)), enumerate(laid_out(second, dtype)))
        for (number, x), (other, y) in pairs:
            expected = x @ y
            tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
            places = [None, *laid_out(expected.shape, dtype)][:-1] if expected.ndim else [None]
            # Each way to lie meets each of both others in some call.
            place = places[(number + other) % len(places)]
            np.testing.assert_allclose(region(x, y, place), expected, **tolerance)
    assert "illegal value" not in "".join(capfd.readouterr())  # which BLAS would say
