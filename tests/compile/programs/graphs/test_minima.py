import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.compile import array_mode
from synk.compile.programs.graphs.minima import with_minima

VALUE = np.array([[-128, 1], [2, 3], [4, 5], [127, -7]], "int8")
CASES = {
    "all": lambda x: x.min(),
    "rows": lambda x: x.min(axis=0),
    "columns": lambda x: x.min(axis=1),
    "kept": lambda x: x.min(axis=0, keepdims=True),
    "computed_with": lambda x: x - x.min(axis=0),
    "of_minima": lambda x: x.min(axis=1).min(),
}


def test_minima_of_signed_integers_are_numpys():
    x = pt.matrix("x", dtype="int8")
    found = pytensor.function([x], [case(x) for case in CASES.values()], mode=array_mode())(VALUE)
    for one, case in zip(found, CASES.values(), strict=True):
        np.testing.assert_array_equal(one, case(VALUE), strict=True)


@pytest.mark.usefixtures("module_ranks")
def test_minima_of_signed_integers_are_numpys_on_ranks():
    x = pt.matrix("x", dtype="int8")
    least = pytensor.shared(np.zeros(2, "int8"), name="least")
    f = synk.function(
        [x], [case(x) for case in CASES.values()], updates=[(least, x.min(axis=0))], check="first"
    )
    for one, case in zip(f(VALUE), CASES.values(), strict=True):
        np.testing.assert_array_equal(one, case(VALUE), strict=True)
    np.testing.assert_array_equal(least.get_value(), VALUE.min(axis=0))


def test_a_graph_without_such_minima_stays_as_it_is():
    x, y = pt.matrix("x", dtype="int8"), pt.dmatrix("y")
    results = [x.max(), -x, y.min(), (-x).max()]
    assert all(one is other for one, other in zip(with_minima(results), results, strict=True))
