"""Arguments of `synk.on_ranks` travel whole, or are refused before anything is sent."""

import threading
from typing import ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.objects import Caller, Counter
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


def test_what_does_not_travel_is_refused_before_anything_is_sent(module_ranks):
    with pytest.raises(TypeError, match="make that on the ranks"):
        synk.on_ranks(Counter, threading.Lock())
    x = pt.dvector("x")
    sequence = synk.sequence(synk.function([x], x.sum()))
    with pytest.raises(TypeError, match="is a sequence"):
        synk.on_ranks(Caller, sequence, None)
    assert synk.on_ranks(Counter, 0)(1)[0] == (0, 1)


def test_a_class_that_was_defined_after_the_fork_travels(module_ranks):
    Later = type("Later", (Counter,), {"__module__": __name__, "__qualname__": "Test.Later"})
    assert synk.on_ranks(Later, 1)(1) == [(rank, 2) for rank in range(module_ranks)]


def test_functions_travel_with_what_they_hold(module_ranks):
    total = np.arange(3.0).sum()

    def make(rank, scale=2):
        return lambda: scale * total + rank

    assert synk.on_ranks(make)() == [6 + rank for rank in range(module_ranks)]


def of_globals(function, data, variable):
    space = {"function": function, "held": {"data": data}, "variable": variable}
    exec(OF_GLOBALS, space)
    return [space[name] for name in ("CallsFunction", "reads_data", "sets_variable")]


OF_GLOBALS = """
class CallsFunction:
    def __init__(self, rank):
        pass

    def __call__(self):
        return function()

def helper():
    return held["data"].sum()

def reads_data(rank):
    return lambda: helper()

def sets_variable(rank):
    return lambda: variable.get_value(borrow=True).fill(rank)
"""


def test_what_is_another_thing_on_rank_0_is_an_argument(module_ranks):
    data, variable = synk.data(np.ones(2)), pytensor.shared(np.ones(2), name="variable")
    function = synk.function([], variable.sum(), name="total")

    def around(rank):
        return lambda: variable

    def of_default(rank, variable=variable):
        return lambda: variable

    class OfClass(Counter):
        kept: ClassVar = [function]

    calls, reads, sets = of_globals(function, data, variable)
    for make, read in (
        (calls, "global 'function'"),
        (reads, "global 'held'"),
        (sets, "global 'variable'"),
        (around, "'variable' of the function around it"),
        (of_default, "a default of .*of_default"),
        (OfClass, "attribute 'kept' of .*OfClass"),
    ):
        with pytest.raises(TypeError, match=f"reads {read}, .*; pass it as an argument"):
            synk.on_ranks(make)
    apply = synk.on_ranks(lambda rank: lambda what: what())
    with pytest.raises(TypeError, match="reads 'variable' of the function around it"):
        apply(lambda: variable)
    total = synk.on_ranks(lambda rank, given: lambda: float(given()[0]), function)
    assert total() == [2] * module_ranks
