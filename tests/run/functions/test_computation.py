"""A function tells its inputs and operations."""

import pytensor
import pytensor.tensor as pt

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


def test_a_function_tells_its_name_inputs_and_modes():
    x, w = pt.vector("x"), pt.scalar("w")
    v, count = pytensor.shared(0.0, name="v"), pytensor.shared(0, name="count")
    f = synk.function(
        [x],
        [x.mean(), (w * x.sum(), "sum"), (x, None)],
        [w],
        updates=[(v, x.sum()), (count, count + 1)],
        name="it",
    )
    assert f.name == "it"
    assert f.inputs == (x, w)
    assert f.output_modes == ["sum", "sum", None]  # a mean over rows is a sum of parts
    assert f.update_modes == [None, None]
    assert repr(f) == "<synk.Function 'it' of ('x', 'w')>"
    assert synk.function([x], x.sum()).name != synk.function([x], x.sum()).name
