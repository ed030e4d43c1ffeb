"""The order of nodes: memory is let go of as soon as can be, and nothing runs before what it needs."""

import tracemalloc

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph

from synk.compile import array_mode
from synk.compile.passes.schedule import schedule, size

LAYERS, ROWS, WIDTH = 12, 400, 50


def gradient_of_a_deep_net():
    """A flat gradient, that of the first layer in front: PyTensor's order starts with it."""
    weights = [pt.matrix(f"w{k}", shape=(WIDTH, WIDTH), dtype="float32") for k in range(LAYERS)]
    x = pt.matrix("x", shape=(ROWS, WIDTH), dtype="float32")
    signal = x
    for w in weights:
        signal = pt.tanh(signal @ w)
    gradients = pt.grad(signal.sum(), weights)
    return [x, *weights], pt.concatenate([g.flatten() for g in gradients])


def test_signals_and_their_gradients_are_not_all_kept():
    inputs, flat = gradient_of_a_deep_net()
    gradient = pytensor.function(inputs, flat, mode=array_mode())
    rng = np.random.default_rng(0)
    values = [rng.random(v.type.shape, "float32") / 10 for v in inputs]
    gradient(*values)
    tracemalloc.start()
    try:
        gradient(*values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    signals = LAYERS * ROWS * WIDTH * 4
    assert peak < 1.5 * signals  # in PyTensor's order it is 2.1 times that


def test_every_node_runs_once_after_those_it_needs():
    inputs, flat = gradient_of_a_deep_net()
    graph = FunctionGraph(inputs, [flat], clone=False)
    order = schedule(graph, graph.toposort())
    position = {node: index for index, node in enumerate(order)}
    assert len(position) == len(order) == len(graph.apply_nodes)
    for node in order:
        assert all(position[v.owner] < position[node] for v in node.inputs if v.owner)


def test_readers_of_an_array_stay_before_the_node_that_overwrites_it():
    x = pt.vector("x", shape=(1000,))
    y = pt.exp(x)
    over = pt.set_subtensor(y[0], 5.0)
    f = pytensor.function([x], [over.sum(), y.sum()], mode=array_mode())
    np.testing.assert_allclose(f(np.zeros(1000)), [1004.0, 1000.0])


def test_an_order_with_nothing_to_free_is_kept():
    x = pt.vector("x", shape=(4,))
    outputs = [pt.exp(x), pt.sin(x), pt.cos(x)]
    graph = FunctionGraph([x], outputs, clone=False)
    order = graph.toposort()
    assert schedule(graph, order) == order


@pytest.mark.parametrize(("shape", "expected"), [((2, 3), 48), ((None, 3), 768), ((), 8)])
def test_size_counts_an_unknown_length_as_some_rows(shape, expected):
    assert size(pt.tensor("x", shape=shape, dtype="float64")) == expected
