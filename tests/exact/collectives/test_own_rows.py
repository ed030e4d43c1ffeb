"""A rank's rows of what all ranks have: refused where they do not fit, with the line that reads them."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.exact.simulated import Simulated
from synk.exact.define import define

X = np.arange(1.0, 27).reshape(13, 2)
x = pt.matrix("x", dtype="float64")


def shared(length, name="p"):
    return pytensor.shared(np.ones((length, 2)), name=name)


def gradient(p):
    return pytensor.grad((x * p).sum(), p)  # of this line


MISFITS = {
    "one row": (lambda: x + shared(1), "'p' has 1 row and meets", "x + shared(1)"),
    "several": (lambda: x + shared(5), "'p' has 5 rows and meets", "x + shared(5)"),
    "computed": (lambda: x * pt.tanh(shared(5, None)), "a value has 5 rows and meets", "x * pt.tanh"),
    "of a product": (lambda: x.T @ shared(5), "'p' has 5 rows and meets", "x.T @ shared(5)"),
    "of a gradient": (lambda: gradient(shared(5)), "'p' has 5 rows and meets", "# of this line"),
}


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_nothing_is_put_in_the_place_of_rows_where_there_are_none_at_all(n_ranks):
    y = pt.vector("y", dtype="float64")
    simulated = Simulated(define("f", [y], [y[y > 2].max(), y[y > 2].min()]))
    assert simulated([X[:, 0]], n_ranks) == [25, 3]
    assert simulated([X[-3:, 0] - 22], n_ranks) == [3, 3]  # on the last rank
    with pytest.raises(ValueError, match="zero-size array"):
        simulated([-X[:, 0]], n_ranks)


@pytest.mark.parametrize("name", MISFITS)
def test_rows_that_do_not_fit_are_refused_with_the_variable_and_the_line(name):
    make, text, line = MISFITS[name]
    simulated = Simulated(define("f", [x], make()))
    with pytest.raises(ValueError, match="rows? and meets") as refusal:
        simulated([X], 1)
    told = str(refusal.value).splitlines()[0]
    assert told.startswith(f"{text} the 13 rows of all scattered inputs (test_own_rows.py:")
    assert line in told
    assert ("specify_broadcastable(value, 0) says so" in told) == (name == "one row")
