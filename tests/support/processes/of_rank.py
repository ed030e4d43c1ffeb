"""An Op that tells something of the rank that computes it, and runs of several sizes."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk
from support.slow import slow


class OfRank(Op):
    """Call ``function()`` on the rank that computes this; the result is a vector."""

    def __init__(self, function):
        self.function = function

    def make_node(self, trigger):
        return Apply(self, [pt.as_tensor(trigger)], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.atleast_1d(np.asarray(self.function(), dtype="float64"))


def asking(function):
    """Return a `synk.function` whose output is the result of ``function()`` on each rank."""
    trigger = pt.scalar("trigger")
    f = synk.function([], (OfRank(function)(trigger), "gather"), [trigger])
    return lambda: f(0.0)


def of_ranks(function):
    """Return the results of ``function()`` on all ranks."""
    return asking(function)()


def same_on_all(variable, n_ranks):
    """Return the value of a variable, which all ranks have bit by bit."""
    values = synk.gather(variable)
    assert len(values) == n_ranks
    for value in values[1:]:
        np.testing.assert_array_equal(value, values[0])
    return values[0]


def runs_of(*numbers, later=()):
    """Return the fixture ``module_ranks`` of a module that runs wholly on so many ranks, and on so many.

    `make test` leaves those of ``later`` to `make test-all`.
    """

    def module_ranks(request):
        yield synk.fork(request.param)
        synk.close()

    ids = [f"{number} ranks" if number > 1 else "1 rank" for number in (*numbers, *later)]
    params = [*numbers, *map(slow, later)]
    return pytest.fixture(module_ranks, scope="module", params=params, ids=ids, autouse=True)
