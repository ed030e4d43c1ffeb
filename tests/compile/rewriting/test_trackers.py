"""What is left of graphs that were compiled and dropped: nothing, in PyTensor's rewriters and in ours."""

import gc
from collections import Counter

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import OpToRewriterTracker

from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.rewriting.trackers import lasting_trackers

KINDS = (Op, Apply, FunctionGraph, OpToRewriterTracker)
x = pt.dmatrix("x")


def fused(number):
    return pt.tanh(x * number) + pt.exp(-x) / (number + 0.5)


def looped(number):
    sums = pytensor.scan(
        lambda row, s: s / number + pt.tanh(row).sum(), x, [pt.zeros(())], return_updates=False
    )
    return sums[-1]


def looped_gradient(number):
    return pt.grad(looped(number), x)


def inside(number):
    y = pt.dvector()
    return OpFromGraph([y], [pt.sqrt(y**2 + number)])(x.sum(axis=1))


def counted():
    """Count the objects of which graphs consist."""
    gc.collect()
    gc.collect()  # the step of a loop is garbage when the loop has gone
    # By type: `isinstance` asks a weak proxy for what it stood for, which may be gone.
    types = Counter(map(type, gc.get_objects()))
    return Counter({kind: sum(types[one] for one in types if issubclass(one, kind)) for kind in KINDS})


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph", [fused, slow(looped_gradient), slow(inside)], ids=lambda graph: graph.__name__
)
def test_graphs_that_differ_leave_nothing(few_objects, graph):
    def use(numbers):
        for number in numbers:
            pytensor.function([x], graph(number), mode=array_mode(ArrayLinker(native=True)))

    use([2, 3])  # what is made once
    before = counted()
    use([5, 6])
    assert not counted() - before  # less is what other tests have left, and what only now could go


def test_all_that_rewrites_a_graph_forgets_its_ops():
    pytensor.function([x], [fused(7), looped(7)], mode=array_mode())
    assert len(lasting_trackers()) >= 8
    assert not any(tracker.get_trackers.cache_info().currsize for tracker in lasting_trackers())


def test_the_trackers_of_the_database_are_found():
    held = {id(tracker) for tracker in lasting_trackers()}
    rewriters = {one for named in optdb.__db__.values() for one in named}
    inside = [getattr(one, "node_rewriter", None) for one in rewriters]
    found = [one.tracker for one in inside if hasattr(one, "tracker")]
    assert found
    assert {id(tracker) for tracker in found} <= held
