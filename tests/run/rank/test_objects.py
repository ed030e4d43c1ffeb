"""Functions, shared variables and Data are those of the rank that a step runs on."""

import gc
import importlib
import weakref

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.objects import Caller, Counter, refused
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


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


def test_a_module_that_workers_do_not_find_is_told_by_them(module_ranks, tmp_path, monkeypatch):
    if module_ranks == 1:
        pytest.skip("the only rank is the script's own process")
    (tmp_path / "found_later.py").write_text("def make(rank):\n    return int\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="found_later") as caught:
        synk.on_ranks(importlib.import_module("found_later").make)
    assert "synk.restart()" in str(caught.value)
    assert len(synk.on_ranks(Counter, 0)(1)) == module_ranks
