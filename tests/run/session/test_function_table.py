"""Functions are sent to the ranks, and compiled there, once; what cannot travel is refused."""

import os
import sys
import threading
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter

import synk
from synk.compile.native.libraries import native_libraries
from synk.compile.native.store import Store
from synk.compile.rewriting.rewritten import rewritten
from synk.run.rank import variants
from synk.run.rank.variants import Variants


class Slow(Op):
    """The input, as it is after a pause."""

    def __init__(self, seconds):
        self.seconds = seconds

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        wake = time.monotonic() + self.seconds
        while time.monotonic() < wake:
            time.sleep(0.01)
        outputs[0][0] = inputs[0].copy()


def summing():
    x = pt.vector("x")
    return synk.function([x], (x.sum(), "sum"))


@pytest.mark.slow
def test_functions_may_be_built_after_others_ran(ranks):
    ranks(2)
    x = pt.vector("x")
    v = pytensor.shared(1.0, name="v")
    for number in range(4):
        f = synk.function([x], ((x * v).sum() + number * 0, "sum"), updates=[(v, v + 1)])
        assert f(np.ones(3)) == 3 * (number + 1)


def test_distribute_may_be_called_any_number_of_times(ranks):
    ranks(2)
    synk.distribute()
    x = pt.vector("x")
    v = pytensor.shared(1.0, name="v")
    f = synk.function([x], ((x * v).sum(), "sum"), updates=[(v, v + 1)])
    synk.distribute()
    synk.distribute()
    assert f(np.ones(3)) == 3
    g = synk.function([x], (x.max(), "max"))
    synk.distribute()
    assert (f(np.ones(3)), g(np.ones(3))) == (6, 1)
    assert synk.gather(v).tolist() == [3, 3]


@pytest.mark.slow
def test_distribute_compiles_for_slices_too(ranks, monkeypatch, tmp_path):
    log = tmp_path / "log"
    log.touch()

    def logged(what, method):
        def call(*args, **kwargs):
            with log.open("a") as file:
                file.write(f"{what}\n")  # by any rank
            return method(*args, **kwargs)

        return call

    monkeypatch.setattr(Variants, "_compiled", logged("graph", Variants._compiled))
    libraries = native_libraries()
    if libraries is not None:
        monkeypatch.setattr(libraries, "store", Store(tmp_path / "store"))
        monkeypatch.setattr(os, "posix_spawn", logged("kernels", os.posix_spawn))
    ranks(2)
    x = pt.vector("x")
    v = pytensor.shared(1.0, name="v")
    f = synk.function(
        [x], ((pt.exp(x * 0.1234567) + v).sum(), "sum"), updates=[(v, (x * v + 2).sum(), "sum")]
    )
    nothing_to_slice = synk.function([], (v * 2, None))
    synk.distribute(num_slices=2)
    assert log.read_text().split().count("graph") == 6  # 2 programs of f and 1 of the other, on 2 ranks
    f(np.ones(8))
    nothing_to_slice()
    compiled = log.read_text()
    assert ("kernels" in compiled) == (libraries is not None)
    f(np.ones(8), num_slices=3)
    assert log.read_text() == compiled


class Held(Op):
    """The input. One that travels can be pickled, and what a rewrite puts in its place cannot."""

    __props__ = ()

    def __init__(self, travels):
        self.travels = travels

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0].copy()

    def __reduce__(self):
        if not self.travels:
            raise TypeError("this one stays here")
        return Held, (True,)


@node_rewriter([Held])
def stays_here(fgraph, node):
    return [Held(travels=False)(*node.inputs)] if node.op.travels else None


@pytest.fixture
def rewritings(monkeypatch, tmp_path):
    """Return a function that counts how many graphs all ranks have rewritten since it was last called."""
    log = tmp_path / "log"
    log.touch()

    def logged(*args):
        with log.open("a") as file:
            file.write(".")
        return rewritten(*args)

    def count():
        n = len(log.read_text())
        log.write_text("")
        return n

    monkeypatch.setattr(variants, "rewritten", logged)
    return count


def test_one_rank_rewrites_a_graph_for_all(ranks, rewritings):
    ranks(3)
    x, v = pt.vector("x"), pytensor.shared(1.0, name="v")
    f = synk.function([x], (pt.exp(x).sum() * v, "sum"), updates=[(v, v + 1)])
    values = np.arange(6.0)
    np.testing.assert_allclose(f(values), np.exp(values).sum())
    assert rewritings() == 1
    np.testing.assert_allclose(f(values, num_slices=2), 2 * np.exp(values).sum())
    np.testing.assert_allclose(f(values), 3 * np.exp(values).sum())
    assert rewritings() == 1  # in slices, updates are results
    synk.commit()
    synk.restart()
    np.testing.assert_allclose(f(values), 4 * np.exp(values).sum())
    assert rewritings() == 0  # rank 0 has them still


def test_each_rank_rewrites_what_cannot_be_sent(ranks, rewritings):
    optdb["specialize"].register("stays_here", stays_here, "fast_run")
    try:
        ranks(3)
        x = pt.vector("x")
        f = synk.function([x], (Held(travels=True)(x * 2).sum(), "sum"))
        assert f(np.arange(6.0)) == 30
        assert rewritings() == 1 + 3  # rank 0 has tried to send its own
    finally:
        optdb["specialize"].remove_tags("stays_here", "fast_run")


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), (True, TypeError), ("2", TypeError)])
def test_distribute_refuses_what_is_no_number_of_slices(ranks, wrong, error):
    ranks(1)
    with pytest.raises(error, match="num_slices"):
        synk.distribute(num_slices=wrong)


def test_a_function_that_cannot_travel_is_refused_and_the_run_goes_on(ranks):
    ranks(2)

    class Local(Slow):
        lock = threading.Lock()

    x = pt.vector("x")
    local = synk.function([x], (Local(0)(x).sum(), "sum"), name="local")
    for use in (lambda: local(np.ones(2)), synk.distribute, lambda: local(np.ones(2))):
        with pytest.raises(TypeError, match="Local.*cannot pickle .*lock"):
            use()
    assert summing()(np.ones(4)) == 4


def test_a_value_that_cannot_travel_is_refused_and_the_run_goes_on(ranks):
    ranks(2)
    v = pytensor.shared(np.ones(2), name="v")
    lock = pytensor.shared(threading.Lock(), name="lock")
    with pytest.raises(TypeError, match="the value of shared variable 'lock' cannot travel"):
        synk.broadcast([v, lock])
    synk.all_reduce(v, "sum")
    assert summing()(np.ones(4)) == 4


@pytest.mark.slow
def test_a_graph_of_thousands_of_nodes_travels(ranks):
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # PyTensor itself may recurse; pickle in C would not survive it
    try:
        check_deep_graph(ranks)
    finally:
        sys.setrecursionlimit(limit)


def check_deep_graph(ranks):
    ranks(2)
    x = pt.vector("x")
    y = x
    for number in range(3000):
        y = pt.sin(y) if number % 2 else y + x
    f = synk.function([x], (y.sum(), "sum"), mode=pytensor.compile.mode.Mode("py", None))
    expected = value = np.linspace(0, 1, 5)
    for number in range(3000):
        expected = np.sin(expected) if number % 2 else expected + value
    np.testing.assert_allclose(f(value), expected.sum(), rtol=1e-10)
