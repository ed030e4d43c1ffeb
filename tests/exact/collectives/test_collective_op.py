"""Collectives in graphs of one process: what they return, what they refuse, in which order they stand."""

import itertools

import numpy as np
import pytensor
import pytensor.graph.replace
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors

from support.slow import slow
from synk.compile import array_mode
from synk.exact.collectives.collective_op import CollectiveOp, numbers_in
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.run_values import ranks
from synk.ops import all_gather, all_reduce, all_sum, broadcast, reduce_scatter
from synk.values.operations import OPERATIONS


@pytest.mark.parametrize("mode", [array_mode(), slow("FAST_COMPILE")], ids=["array_mode", "FAST_COMPILE"])
def test_a_plain_function_returns_what_it_is_given(mode):
    x = pt.matrix("x")
    collectives = [
        *(all_reduce(x * 2, op) for op in OPERATIONS),
        *(reduce_scatter(x * 2, op) for op in OPERATIONS),
        *(all_sum(x * 2), all_gather(x * 2), all_gather(x * 2, 1), broadcast(x * 2, 1)),
    ]
    gradients = [pt.grad((y**2).sum(), x) for y in collectives]
    values = np.random.default_rng(3).normal(size=(4, 3))
    found = pytensor.function([x], [*collectives, *gradients], mode=mode)(values)
    for collective, value, gradient in zip(
        collectives, found[: len(collectives)], found[len(collectives) :], strict=True
    ):
        np.testing.assert_array_equal(value, values * 2, err_msg=str(collective.owner.op))
        np.testing.assert_allclose(gradient, values * 8, err_msg=str(collective.owner.op))


@pytest.mark.parametrize("mode", [array_mode(), slow("FAST_COMPILE")], ids=["array_mode", "FAST_COMPILE"])
def test_sums_wait_for_each_other_in_the_order_they_were_written(mode):
    x = pt.matrix("x")
    first, second = all_sum(x.sum(0)), all_sum(x.sum(1))
    for outputs in ([first, second], [second, first]):
        graph = pytensor.function([x], outputs, mode=mode).maker.fgraph
        numbers = [node.op.number for node in graph.toposort() if isinstance(node.op, CollectiveOp)]
        assert len(numbers) == 2
        assert numbers == sorted(numbers)


def test_a_sum_may_wait_for_one_that_was_written_later():
    x, y = pt.vector("x"), pt.vector("y")
    first, second = all_sum(y), all_sum(x * 2)
    chained = pytensor.graph.replace.clone_replace(first, {y: second})
    doubled = pytensor.function([x], [chained, second], mode=array_mode())
    np.testing.assert_allclose(doubled([1.0, 2.0]), [[2.0, 4.0]] * 2)


def test_the_same_sum_written_twice_is_formed_twice():
    x = pt.matrix("x")
    graph = pytensor.function([x], [all_sum(x), all_sum(x)], mode=array_mode()).maker.fgraph
    assert sum(isinstance(node.op, AllReduceOp) for node in graph.apply_nodes) == 2


@pytest.mark.parametrize(
    ("collective", "message"),
    [
        (lambda x: all_reduce(x, "mean"), "'mean' is not a reduce operation"),
        (lambda x: all_reduce(x > 0, "sum"), "is boolean, which has no"),
        (lambda x: reduce_scatter(x.astype("int64"), "avg"), "dtype int64, which has no"),
        (lambda x: reduce_scatter(x.sum()), "an array of 0 axes has no axis 0"),
        (lambda x: all_gather(x, 2), "axis=2 is not one of the 2 axes"),
        (lambda x: all_gather(x.sum()), "axis=0 is not one of the 0 axes"),
        (lambda x: broadcast(x, -1), "root=-1 is no rank"),
        (lambda x: AllReduceOp("sum")(x, x > 0, ranks), "arrays of one dtype, not of"),
    ],
)
def test_what_has_no_meaning_is_refused_where_it_is_written(collective, message):
    with pytest.raises((TypeError, ValueError), match=message):
        collective(pt.matrix("x"))


def test_a_loop_with_collectives_inside_waits_and_is_waited_for():
    x = pt.matrix("x")
    first = all_sum(x.sum(0))
    loop = pytensor.scan(
        lambda state: all_reduce(state, "max") / 2, outputs_info=[x.sum(0)], n_steps=3, return_updates=False
    )[-1]
    last = all_reduce(x.sum(0), "min")
    for outputs in itertools.permutations([first, loop, last]):
        graph = pytensor.function([x], outputs, mode=array_mode()).maker.fgraph
        nodes = [node for node in graph.toposort() if any(True for _ in numbers_in(node.op))]
        assert [type(node.op).__name__ for node in nodes] == ["AllReduceOp", "Scan", "AllReduceOp"]
        for before, node in itertools.pairwise(nodes):
            assert set(before.outputs) & set(ancestors(node.inputs))
