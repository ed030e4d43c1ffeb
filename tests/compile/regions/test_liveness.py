"""Results are written over arrays that nobody reads any more, and over no others."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from support.regions.compiled import compiled, regions_of
from synk.compile import ArrayLinker, array_mode
from synk.compile.regions.functions import RegionFunction
from synk.compile.regions.region_writer import RegionWriter


def test_a_large_variable_is_updated_in_its_own_array():
    n = 5000
    v, m = (pytensor.shared(np.ones(n), name=name) for name in "vm")
    slope = pt.vector("slope")
    function = compiled([slope], [], updates=[(m, 0.9 * m + slope), (v, v - 0.1 * (0.9 * m + slope))])
    arrays = [variable.get_value(borrow=True) for variable in (v, m)]
    function(np.ones(n))
    for variable, array in zip((v, m), arrays, strict=True):
        assert variable.get_value(borrow=True) is array
    np.testing.assert_allclose(arrays[1], 1.9)
    np.testing.assert_allclose(arrays[0], 0.81)


@pytest.mark.parametrize(
    "new",
    [
        lambda x, at: (x * 2)[at],
        lambda x, at: pt.inc_subtensor(pt.zeros(400)[at], x * 2),
        lambda x, at: pt.set_subtensor(pt.zeros(400)[at], x * 2),
    ],
    ids=["taken", "added", "changed"],
)
def test_an_update_that_fails_in_the_middle_is_not_made(new):
    x, at = pt.tensor("x", shape=(400,), dtype="float64"), pt.tensor("at", shape=(400,), dtype="int64")
    w = pytensor.shared(np.zeros(400), name="w", shape=(400,))
    function = compiled([x, at], [], updates=[(w, pt.specify_shape(new(x, at), (400,)))])
    assert regions_of(function)
    value, positions = w.get_value(borrow=True), np.arange(400)
    function(np.ones(400), positions)
    assert w.get_value(borrow=True) is value
    np.testing.assert_array_equal(value, 2)
    positions[-1] = 400
    with pytest.raises(IndexError):
        function(np.full(400, 7.0), positions)
    np.testing.assert_array_equal(value, 2)


def test_two_results_of_one_node_are_written_over_two_variables():
    v, w, x = pt.vectors("vwx")
    scalars = [variable.type.to_scalar_type()() for variable in (v, w, x)]
    moved = scalars[0] * 0.9 + scalars[2]
    op = Elemwise(Composite(scalars, [moved, scalars[1] - moved]))
    graph = FunctionGraph([v, w, x], op(v, w, x), clone=False)
    text = RegionWriter(graph.toposort(), graph.inputs, graph.outputs).write()
    assert not text.fails_late  # so it takes arrays for its results
    run = RegionFunction(graph, text, in_python=None)
    places = np.ones(5), np.ones(5)
    results = run(*places, np.ones(5), out=places)
    assert all(result is place for result, place in zip(results, places, strict=True))
    assert (places[0].tolist(), places[1].tolist()) == ([1.9] * 5, [1 - 1.9] * 5)
    assert run(*places, np.ones(5), out=places)[0] is places[0]


@pytest.mark.parametrize(
    "new",
    [
        lambda v: v[::-1] * 0.5 + v.sum(),
        lambda v: pt.concatenate([v[2500:], v[:2500]]) * 1.5,
        lambda v: v.reshape((50, 100)).T.reshape((-1,)) + v,
        lambda v: v[::-1] + v,
        lambda v: v[pt.arange(4999, -1, -1)] * 2 + v.max(),
    ],
)
def test_what_is_still_read_is_not_written_over(new):
    found = []
    for native in (True, False):
        v, w = (pytensor.shared(np.arange(5000.0), name=name, shape=(5000,)) for name in "vw")
        mode = array_mode(ArrayLinker(native=native))
        function = pytensor.function([], v.sum(), updates=[(v, new(v)), (w, w + v[::-1])], mode=mode)
        for _ in range(3):
            function()
        found.append((v.get_value(), w.get_value()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_view_that_is_returned_is_not_written_over():
    x, at = pt.tensor("x", shape=(200,), dtype="float64"), pt.tensor("at", shape=(200,), dtype="int64")
    taken = x[at]
    outputs = [taken.reshape((20, 10)).T, pt.inc_subtensor(taken[at], x).sum()]
    given = np.arange(200.0), np.arange(200)[::-1].copy()
    found, expected = (
        pytensor.function([x, at], outputs, mode=array_mode(ArrayLinker(native=native)))(*given)
        for native in (True, False)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_of_large_products_are_born_in_the_flat_vector():
    x, flat = pt.matrix("x"), pytensor.shared(np.zeros(50 * 60 + 60))
    w, b = pytensor.shared(np.ones((50, 60))), pytensor.shared(np.zeros(60))
    slopes = pytensor.grad((pt.tanh(x @ w + b) ** 2).sum(), [w, b])
    pieces = [
        pt.specify_shape(slope, v.get_value().shape).reshape((-1,))
        for slope, v in zip(slopes, (w, b), strict=True)
    ]
    written = []

    def watched(node, run):
        def call(*inputs, out=None):
            written.append((str(node.op), out))
            return run(*inputs, out=out) if out is not None else run(*inputs)

        call.takes_out = True
        return call

    mode = array_mode(ArrayLinker(observe=watched, native=True))
    function = pytensor.function([x], [], updates=[(flat, pt.concatenate(pieces))], mode=mode)
    array = flat.get_value(borrow=True)
    function(np.random.default_rng(0).normal(size=(20, 50)))
    assert any("Dot22" in name and np.shares_memory(out, array) for name, out in written if out is not None)
    assert array.all()
