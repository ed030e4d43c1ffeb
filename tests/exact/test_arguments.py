"""Wrong arguments of `synk.function` are refused when it is built, by name."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])

x, y = pt.vector("x"), pt.vector("y")
v = pytensor.shared(np.ones(2), name="v")
scalar, single = pt.scalar("scalar"), pt.row("single")

WRONG_FUNCTIONS = [
    (([x], [((x > 0).all(), "avg")]), TypeError, "boolean, which has no .avg."),
    ((([x]), [(pt.eq(x, 1), "sum")]), TypeError, "boolean, which has no .sum."),
    (([x], (x.shape[0], "avg")), TypeError, "output 0 .*int64, which has no .avg."),
    (([x], (x, "mean")), ValueError, "'mean' is not a reduce operation"),
    (([x], (x, "c_median")), ValueError, "'c_median' is not a reduce operation"),
    (([x], (x, "sum", 1)), TypeError, "an output tuple is"),
    (([x], 3), TypeError, "output 0 must be a variable"),
    (([x], ((x + 1j), "min")), TypeError, "complex, which has no .min."),
    ((x, x.sum()), TypeError, "inputs must be a list"),
    (([scalar], scalar), TypeError, "'scalar' has no rows to scatter; put it in bcast_inputs"),
    (([single], single), ValueError, "'single' is .*, of a single row, .*; put it in bcast_inputs"),
    (([x], x.sum(), [x]), ValueError, "'x' is given twice"),
    (([x, x], x.sum()), ValueError, "'x' is given twice"),
    (([v], v.sum()), TypeError, "inputs must hold symbolic variables"),
    (([x, y], x.sum()), ValueError, "'y' is not used.*on_unused_input"),
    (([x], (x * y).sum()), ValueError, "'y' is needed but is not an input"),
    (([x], x.sum(), y), TypeError, "bcast_inputs must be a list"),
]


@pytest.mark.parametrize(("arguments", "error", "match"), WRONG_FUNCTIONS)
def test_what_is_wrong_with_a_function_is_said_when_it_is_built(arguments, error, match):
    with pytest.raises(error, match=match):
        synk.function(*arguments)


count, flag = pytensor.shared(0, name="count"), pytensor.shared(True, name="flag")
number = pytensor.shared(0.0, name="number")

WRONG_UPDATES = [
    ([(count, count + 1, "avg")], TypeError, "update of 'count' .*int64, which has no .avg."),
    ([(flag, ~flag, "sum")], TypeError, "update of 'flag' is boolean, which has no .sum."),
    ([(number, x.sum(), "mean")], ValueError, "'mean' is not a reduce operation of the update of 'number'"),
    ([(number, x.sum()), (number, number + 1)], ValueError, "'number' is updated twice"),
    ([(x, x + 1)], TypeError, "only shared variables can be updated"),
    ([(number, x)], TypeError, "."),
    ([number], TypeError, "an update is"),
    ([(number,)], TypeError, "an update is"),
    (number, TypeError, "updates must be a list"),
    ([(number, x.sum(), "gather")], (TypeError, ValueError), "'number' is 0-d"),
]


@pytest.mark.parametrize(("updates", "error", "match"), WRONG_UPDATES)
def test_what_is_wrong_with_an_update_is_said_when_the_function_is_built(updates, error, match):
    with pytest.raises(error, match=match):
        synk.function([x], x.sum(), updates=updates)
