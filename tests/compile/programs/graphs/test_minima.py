import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.slow import slow
from synk.compile import array_mode
from synk.compile.programs.graphs.minima import with_minima

VALUES = {
    "int8": np.array([[2, 3], [-128, 1], [4, 5], [127, -7]], "int8"),
    "uint8": np.array([[2, 255], [9, 7], [0, 8], [255, 3]], "uint8"),
    "bool": np.array([[True, True], [True, False], [True, True], [True, True]]),
}
CASES = {
    "all": lambda x: x.min(),
    "rows": lambda x: x.min(axis=0),
    "columns": lambda x: x.min(axis=1),
    "kept": lambda x: x.min(axis=0, keepdims=True),
    "computed_with": lambda x: x ^ x.min(axis=0),
    "of_minima": lambda x: x.min(axis=1).min(),
    "first": lambda x: x.argmin(),
    "first_row": lambda x: x.argmin(axis=0),
    "first_column": lambda x: x.argmin(axis=1),
}
SUMS = np.array([[100, 90], [100, 60], [100, 120], [57, 3]])  # in 8 bits, they wrap


@pytest.mark.parametrize("dtype", VALUES)
def test_minima_of_integers_and_truth_values_are_numpys(dtype):
    x, value = pt.matrix("x", dtype=dtype), VALUES[dtype]
    found = pytensor.function([x], [case(x) for case in CASES.values()], mode=array_mode())(value)
    for one, case in zip(found, CASES.values(), strict=True):
        np.testing.assert_array_equal(one, case(value), strict=True)


@pytest.mark.slow
def test_minima_of_integers_and_truth_values_are_numpys_on_ranks(ranks):
    ranks(2, device="cpu")
    xs = [pt.matrix(f"x{dtype}", dtype=dtype) for dtype in VALUES]
    least = pytensor.shared(np.zeros(2, "int8"), name="least")
    f = synk.function(
        xs,
        [case(x) for x in xs for case in CASES.values()],
        updates=[(least, xs[0].min(axis=0))],
        check="first",
    )
    expected = [case(value) for value in VALUES.values() for case in CASES.values()]
    for one, other in zip(f(*VALUES.values()), expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    np.testing.assert_array_equal(least.get_value(), VALUES["int8"].min(axis=0))


def minima_of_sums(xs):
    """Return minima of running sums, in reverse: the last is the smallest."""
    sums = [pt.cumsum(x, axis=0)[::-1] for x in xs]
    asked = (lambda s: s.min(axis=0), pt.min, pt.argmin, lambda s: pt.argmin(s, axis=0), pt.argmax)
    return [ask(s) for s in sums for ask in asked]


def check_minima_of_sums(compiled):
    """Compare minima with NumPy's of numbers in the declared dtype, places with those of wide numbers."""
    xs = [pt.matrix(f"x{dtype}", dtype=dtype) for dtype in VALUES]
    values = [SUMS.astype(dtype) for dtype in VALUES]
    found = iter(compiled(xs, minima_of_sums(xs))(*values))
    for value in values:
        sums = np.cumsum(value, axis=0)[::-1]
        narrow = sums.astype(value.dtype)
        expected = [narrow.min(axis=0), narrow.min(), sums.argmin(), sums.argmin(axis=0), sums.argmax()]
        for other in expected:
            np.testing.assert_array_equal(next(found), other, strict=True)


def test_minima_of_running_sums_are_numpys():
    check_minima_of_sums(lambda xs, results: pytensor.function(xs, results, mode=array_mode()))


@pytest.mark.parametrize("n_ranks", [slow(1), 2])
def test_minima_of_running_sums_are_numpys_on_ranks(ranks, n_ranks):
    ranks(n_ranks, device="cpu")
    check_minima_of_sums(lambda xs, results: synk.function(xs, results, check="first"))


def test_a_graph_without_such_minima_stays_as_it_is():
    x, y = pt.matrix("x", dtype="int8"), pt.dmatrix("y")
    u, b = pt.matrix("u", dtype="uint8"), pt.matrix("b", dtype="bool")
    results = [x.max(), -x, y.min(), (-x).max(), 255 - u, 254 - (254 - u).max(), ~b, y.argmin(), x.argmax()]
    assert all(one is other for one, other in zip(with_minima(results), results, strict=True))
