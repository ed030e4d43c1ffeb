"""Results that differ in shape between ranks or slices: they are named, and never broadcast."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk

VALUES = np.arange(26.0).reshape(13, 2)  # seven rows and six

# That these operations are not right is also said when the function is built.
pytestmark = [
    pytest.mark.usefixtures("module_ranks"),
    pytest.mark.filterwarnings("ignore:'f' does not give:synk.SynkWarning"),
]


@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
@pytest.mark.parametrize("n_rows", [13, 3])  # NumPy would broadcast two rows and one
def test_results_of_rows_are_not_reduced(op, n_rows):
    x = pt.matrix("x", dtype="float64")
    per_row = x.sum(axis=1)
    per_row.name = "per_row"
    f = synk.function([x], [(x.sum(), "sum"), (per_row, op)], name="f")
    match = rf"output 1 \('per_row'\) of 'f' is not reduced by '{op}': .*shapes .* takes \"gather\""
    with pytest.raises(ValueError, match=match):
        f(VALUES[:n_rows])
    joined = synk.function([x], (per_row, "gather"))(VALUES[:n_rows])
    np.testing.assert_array_equal(joined, VALUES[:n_rows].sum(axis=1))


def test_results_of_slices_are_not_reduced():
    x, v = pt.matrix("x", dtype="float64"), pytensor.shared(np.zeros(3), name="v")
    f = synk.function([x], (x.sum(axis=1), "sum"), name="f")
    with pytest.raises(ValueError, match=r"output 0 of 'f' is not reduced by 'sum': .*\(2,\) and \(1,\)"):
        f(VALUES[:12], num_slices=5)
    g = synk.function([x], updates=[(v, x.sum(axis=1), "avg")], name="g")
    with pytest.raises(ValueError, match="update 0 of 'g' is not reduced by 'avg'"):
        g(VALUES, num_slices=2)


def test_rows_that_do_not_join_are_named():
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], (x.T, "gather"), name="f")
    with pytest.raises(ValueError, match=r"output 0 \(.*\) of 'f' is not reduced by 'gather'"):
        f(VALUES)
