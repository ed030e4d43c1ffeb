"""Inputs of a call are taken by position and by name."""

import numpy as np
import pytensor.tensor as pt

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


def test_inputs_go_by_position_or_by_name():
    x, y, scale = pt.vector("x"), pt.vector("y"), pt.scalar("scale")
    f = synk.function([x, y], ((x - scale * y).sum(), "sum"), [scale])
    one, two = np.ones(4), 2 * np.ones(4)
    assert f(one, two, 10) == f(one, scale=10, y=two) == f(scale=10, y=two, x=one) == -76
