"""Objects on every rank: made there, called there, dropped there."""

import gc
import importlib
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


class Counter:
    """Counts its calls, and knows its rank."""

    made: ClassVar = weakref.WeakSet()

    def __init__(self, rank, start):
        self.rank, self.count = rank, start
        self.made.add(self)

    def __call__(self, step):
        if step is None:
            raise ValueError(f"rank {self.rank} has no step")
        self.count += step
        return self.rank, self.count


def count_alive(rank):
    """Return a function that tells how many counters this rank has."""
    return lambda: len(Counter.made)


class Caller:
    """Calls a function of this rank on an array that all ranks share."""

    def __init__(self, rank, function, array):
        self.function, self.array = function, array

    def __call__(self, scale):
        (total,) = self.function(np.full(2, scale), self.array)
        return float(total)


class BoundCaller:
    """Binds a function to an array of its own, and writes into that."""

    def __init__(self, rank, function, array):
        self.scale = np.zeros(2)
        self.call = function.bound(self.scale, array)

    def __call__(self, scale):
        self.scale[...] = scale
        return float(self.call()[0])


class Writer:
    """Writes into an array that all ranks share."""

    def __init__(self, rank, array):
        self.rank, self.array = rank, array

    def __call__(self, scale):
        self.array[self.rank] = scale + self.rank


class Background:
    """Works in a thread, between the calls."""

    def __init__(self, rank):
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.done.set)
        self.thread.start()

    def __call__(self):
        self.thread.join()
        return self.done.is_set()


def test_each_rank_keeps_its_own_object(module_ranks):
    counter = synk.on_ranks(Counter, 10)
    assert counter(1) == [(rank, 11) for rank in range(module_ranks)]
    assert counter(5) == [(rank, 16) for rank in range(module_ranks)]


def test_an_object_is_dropped_on_every_rank_with_its_handle(module_ranks):
    gc.collect()
    alive = synk.on_ranks(count_alive)
    before = alive()
    counter = synk.on_ranks(Counter, 0)
    assert alive() == [n + 1 for n in before]
    del counter
    gc.collect()
    assert alive() == before


def test_an_object_that_is_closed_is_dropped_although_its_handle_is_kept(module_ranks):
    counter = synk.on_ranks(Counter, 0)
    counter.close()
    with pytest.raises(synk.SynkStateError, match="do not have this object any more"):
        counter(1)


def test_functions_and_data_arrive_as_what_the_rank_has(module_ranks):
    w, x = pt.dvector("w"), pt.dmatrix("x")
    total = synk.function([], (x @ w).sum(), bcast_inputs=[w, x])
    caller = synk.on_ranks(Caller, total, synk.data(np.ones((3, 2))))
    assert caller(2.0) == [12.0] * module_ranks
    weak = weakref.ref(total)
    del total
    gc.collect()
    assert weak() is not None  # for as long as the objects may call it
    del caller


def test_a_bound_function_computes_with_what_its_arrays_hold(module_ranks):
    x, rows = pt.dvector("x"), pt.dmatrix("rows")
    total = synk.function([], (rows @ x).sum(), bcast_inputs=[x, rows])
    caller = synk.on_ranks(BoundCaller, total, synk.data(np.ones((3, 2))))
    assert caller(1) == [6.0] * synk.n_ranks()
    assert caller(2) == [12.0] * synk.n_ranks()


@pytest.mark.one_machine(reason="writes into memory that ranks of several machines may only read")
def test_ranks_write_into_data(module_ranks):
    data = synk.data(np.zeros(module_ranks))
    synk.on_ranks(Writer, data)(2.0)
    assert data[:].tolist() == [2.0 + rank for rank in range(module_ranks)]


class Stepper:
    """Calls a function of this rank with its number."""

    def __init__(self, rank, function):
        self.rank, self.function = rank, function

    def __call__(self, fails=False):
        self.function(np.asarray(float(self.rank)))
        if fails:
            raise ValueError("a step failed")


class Setter:
    """Reads a shared variable, and sets another one, or writes into it."""

    def __init__(self, rank, read, written):
        self.rank, self.read, self.written = rank, read, written

    def __call__(self, how):
        if how == "set":
            self.written.set_value(self.read.get_value() + self.rank)
        elif how == "write":
            self.written.get_value(borrow=True)[...] += self.rank
        elif how == "write into what is read":
            self.read.get_value(borrow=True)[...] = self.rank
        else:
            self.read.set_value(self.read.get_value())


def refused(function):
    """Return whether a call is refused, for it takes as equal what on_ranks may have changed."""
    try:
        function()
    except ValueError as error:
        return "as equal on all ranks" in str(error) and "since synk.on_ranks" in str(error)
    return False


def test_what_functions_of_an_object_update_is_per_rank_after_a_call(module_ranks):
    v, k = pytensor.shared(np.zeros(2), name="v"), pt.dscalar("k")
    add, total = synk.function([], updates=[(v, v + k)], bcast_inputs=[k]), synk.function([], v.sum())
    both = synk.sequence((synk.all_reduce, v), total)
    steps = synk.on_ranks(Stepper, add)
    steps()
    assert refused(total) == (module_ranks > 1)
    np.testing.assert_array_equal(synk.gather(v, nd_up=1)[:, 0], np.arange(module_ranks))
    assert both() == pytest.approx(np.arange(module_ranks).mean() * 2)
    assert not refused(total)
    with pytest.raises(ValueError, match="a step failed"):
        steps(True)
    assert refused(total) == (module_ranks > 1)
    synk.commit()
    synk.broadcast(v)
    assert not refused(total)


def test_shared_variables_arrive_as_those_of_the_rank(module_ranks):
    read, written = (pytensor.shared(np.ones(2), name=name) for name in ("read", "written"))
    totals = [synk.function([], one.sum()) for one in (read, written)]
    setter = synk.on_ranks(Setter, read, written, changes=[written])
    for how, added in (("set", 1), ("write", 2)):
        setter(how)
        expected = 1 + added * np.arange(module_ranks)
        np.testing.assert_array_equal(synk.gather(written, nd_up=1)[:, 1], expected)
        assert [refused(total) for total in totals] == [False, module_ranks > 1]
    synk.broadcast(written, np.zeros(2))
    assert totals[1]() == 0


def test_a_variable_that_was_not_announced_cannot_be_changed(module_ranks):
    read, written = (pytensor.shared(np.ones(2), name=name) for name in ("read", "written"))
    setter = synk.on_ranks(Setter, read, written, changes=written)
    with pytest.raises(TypeError, match=r"'read' was given to synk.on_ranks to be read.*changes=\[read\]"):
        setter("set what is read")
    with pytest.raises(ValueError, match="read-only"):
        setter("write into what is read")
    assert synk.function([], read.sum())() == 2
    with pytest.raises(TypeError, match="changes must list shared variables, got 'read'"):
        synk.on_ranks(Setter, read, written, changes=["read"])


def test_a_value_that_does_not_fit_a_variable_is_refused_on_the_rank(module_ranks):
    vector, scalar = pytensor.shared(np.ones(2), name="vector"), pytensor.shared(1.0, name="scalar")
    with pytest.raises(TypeError, match="dimension"):
        synk.on_ranks(Setter, vector, scalar, changes=[scalar])("set")


def test_work_goes_on_between_calls(module_ranks):
    background = synk.on_ranks(Background)
    assert background() == [True] * module_ranks


def test_an_error_of_an_object_leaves_run_and_objects_usable(module_ranks):
    counter = synk.on_ranks(Counter, 0)
    with pytest.raises(ValueError, match="rank 0 has no step"):
        counter(None)
    assert counter(1) == [(rank, 1) for rank in range(module_ranks)]
    with pytest.raises(TypeError, match="missing"):
        synk.on_ranks(Counter)


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


def test_a_module_that_workers_do_not_find_is_told_by_them(module_ranks, tmp_path, monkeypatch):
    if module_ranks == 1:
        pytest.skip("the only rank is the script's own process")
    (tmp_path / "found_later.py").write_text("def make(rank):\n    return int\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="found_later") as caught:
        synk.on_ranks(importlib.import_module("found_later").make)
    assert "synk.restart()" in str(caught.value)
    assert len(synk.on_ranks(Counter, 0)(1)) == module_ranks


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


def test_what_is_given_to_many_calls_is_kept_once(module_ranks):
    data = synk.data(np.ones(2))
    add = synk.on_ranks(lambda rank: lambda array, other: float((array + other).sum()))
    for _ in range(3):
        assert add(data, data) == [4] * module_ranks
    assert add._referenced == [data]


def test_an_object_whose_code_was_changed_since_is_refused(module_ranks):
    def make(rank, scale=2):
        return lambda: scale * rank

    twice = synk.on_ranks(make)
    assert twice() == [2 * rank for rank in range(module_ranks)]
    make.__defaults__ = (3,)
    with pytest.raises(synk.SynkStateError, match="synk.on_ranks makes another"):
        twice()
    assert synk.on_ranks(make)() == [3 * rank for rank in range(module_ranks)]
