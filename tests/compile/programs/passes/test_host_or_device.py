"""The pass is tested as it decides, and by what the stand-in for a GPU counts when its programs run."""

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.fg import FunctionGraph
from pytensor.raise_op import Assert

from support.cases.unary_op import UnaryOp
from synk.compile import ArrayLinker, array_funcify, array_mode, emit
from synk.compile.compat import optional_class
from synk.compile.programs.passes.host_or_device import Transfers, is_shape_like, place, stay, wanted_on_host
from synk.compile.tables import DEVICE, HOST

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


def placed(inputs, outputs, **keywords):
    """Place a graph as it stands; implementations are the sides that they are for."""
    graph = FunctionGraph(inputs, outputs, clone=False)
    return place(graph.toposort(), inputs, outputs, lambda node, side: side, **keywords)


def on_device(xp, inputs, results, accept_inplace=False, **keywords):
    mode = array_mode(ArrayLinker(xp, **keywords))
    return pytensor.function(inputs, results, mode=mode, accept_inplace=accept_inplace)


def test_lengths_are_computed_on_the_host():
    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    length = x.shape[0] * 2
    zeros, product = pt.zeros((length, 3)), x @ y
    sides = placed([x, y], [zeros, product]).implementations
    assert sides[length.owner] == HOST
    assert sides[zeros.owner] == DEVICE
    assert sides[product.owner] == DEVICE


def test_what_is_read_on_the_host_is_wanted_there():
    x, n = pt.fmatrix("x"), pt.lscalar("n")
    m = n + 1
    y = x.reshape((m, -1))
    wanted = wanted_on_host(FunctionGraph([x, n], [y], clone=False).toposort())
    assert {n, m} <= wanted
    assert x not in wanted


def test_ends_of_slices_beside_lists_of_positions_are_wanted_there():
    x, i, n = pt.fmatrix("x"), pt.lvector("i"), pt.lscalar("n")
    m = n + 1
    for y in (x[i, :m], pt.set_subtensor(x[i, :m], 0)):
        wanted = wanted_on_host(FunctionGraph([x, i, n], [y], clone=False).toposort())
        assert {n, m} <= wanted
        assert not wanted & {x, i}


@pytest.mark.parametrize(
    ("variable", "may_be_a_shape"),
    [
        (pt.lscalar(), True),
        (pt.fscalar(), True),
        (pt.lvector(), True),
        (pt.fvector(), False),
        (pt.tensor(shape=(2, 3)), True),
        (pt.tensor(shape=(200, 3)), False),
        (pt.lmatrix(), False),
    ],
)
def test_what_may_be_a_shape(variable, may_be_a_shape):
    assert is_shape_like(variable) == may_be_a_shape


def test_a_large_result_of_numbers_of_the_host_is_made_on_the_device():
    n = pt.lscalar("n")
    indices = pt.arange(n)
    assert placed([n], [indices], inputs_on_host=[0]).implementations[indices.owner] == DEVICE


def test_a_small_reduction_of_a_large_input_is_not_made_on_the_host():
    x = pt.lvector("x")
    total = x.sum()
    assert placed([x], [total], inputs_on_host=[0]).implementations[total.owner] == DEVICE


def test_a_value_for_both_sides_crosses_once(device):
    x, n = pt.fmatrix("x"), pt.lvector("n")
    function = on_device(device, [x, n], [x.reshape(n, ndim=2), x[n], x[:, n]], outputs="device")
    assert function.vm.jit_fn.transfers == Transfers(uploads=2, downloads=0)
    device.counts.reset()
    results = function(np.ones((3, 4), "float32"), np.array([-1, 2]))
    assert (device.counts.uploads, device.counts.downloads) == (2, 0)
    assert [result.shape for result in results] == [(6, 2), (2, 4), (3, 2)]


def test_with_numpy_programs_stay_as_they_are():
    x = pt.fmatrix("x")
    graph = FunctionGraph([x], [(x * 2).reshape((x.shape[0], -1))], clone=False)
    nodes = graph.toposort()
    found = stay(nodes, graph.outputs, lambda node, side: None)
    assert [step.node for step in found.steps] == nodes
    assert all(step.inputs is step.node.inputs for step in found.steps)
    program = emit(graph, np)
    assert program.transfers == Transfers(0, 0)
    assert "to_device" not in program.source


def test_results_are_fetched_when_all_is_launched(device):
    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    function = on_device(device, [x, y], [x.sum(), ifelse(x.sum() > 0, x @ y, y), pt.exp(x).sum(0)])
    lines = function.vm.jit_fn.source.splitlines()[1:]
    calls = [line for line in lines if "(" in line and "return" not in line]
    assert ["= to_host" in line for line in calls] == [False] * (len(calls) - 3) + [True] * 3
    assert not any(line.startswith("     ") for line in calls[-3:])  # in no branch
    for sign in (1, -1):
        a, b = np.full((2, 2), sign, "f4"), np.ones((2, 2), "f4")
        total, chosen, sums = function(a, b)
        assert total == 4 * sign
        np.testing.assert_array_equal(chosen, a @ b if sign > 0 else b)
        np.testing.assert_allclose(sums, np.exp(a).sum(0), rtol=1e-6)


def test_constants_cross_when_the_graph_is_compiled(device):
    x, table = pt.fvector("x"), np.arange(5, dtype="float32")
    function = on_device(device, [x], x * table * 2 + 1)
    device.counts.reset()
    np.testing.assert_array_equal(function(np.ones(5, "float32")), 2 * table + 1)
    assert (device.counts.uploads, device.counts.downloads) == (1, 1)


def test_single_numbers_travel_with_launches(device):
    x, rate = pt.fmatrix("x"), pt.fscalar("rate")
    function = on_device(device, [x, rate], x * (rate + 1) + x / x.shape[0].astype("float32"))
    device.counts.reset()
    np.testing.assert_allclose(function(np.ones((4, 2), "float32"), 3.0), 4.25)
    assert (device.counts.uploads, device.counts.launches) == (1, 3)


def test_results_stay_on_the_device_if_asked_to(device):
    x = pt.fvector("x")
    value = np.ones(3, "float32")
    assert type(on_device(device, [x], x + 1)(value)) is np.ndarray
    assert type(on_device(device, [x], x.sum())(value)) is np.ndarray
    result = on_device(device, [x], x.sum(), outputs="device")(value)
    assert (type(result), result.shape) == (device.ndarray, ())


def test_where_results_go_must_be_known():
    with pytest.raises(ValueError, match="outputs='moon' is unknown; choose one of host, device"):
        ArrayLinker(outputs="moon")


def test_shared_variables_move_to_the_device_and_stay(device):
    x, weights = pt.fvector("x"), pytensor.shared(np.zeros(3, "float32"))
    step = pytensor.function([x], updates={weights: weights + x}, mode=array_mode(ArrayLinker(device)))
    value = np.ones(3, "float32")
    step(value)
    array = weights.get_value(borrow=True)
    assert type(array) is device.ndarray
    device.counts.reset()
    step(value)
    assert (device.counts.uploads, device.counts.downloads) == (1, 0)
    assert weights.get_value(borrow=True) is array
    np.testing.assert_array_equal(array.get(), 2)
    weights.set_value(np.full(3, 5, "float32"))
    step(value)
    np.testing.assert_array_equal(weights.get_value(borrow=True).get(), 6)


def test_a_shared_variable_that_the_host_reads_stays_there(device):
    x, i = pt.fvector("x"), pytensor.shared(np.asarray(0))
    rows = x[2 * i : 2 * i + 2]
    step = pytensor.function([x], rows * 2, updates={i: i + 1}, mode=array_mode(ArrayLinker(device)))
    value = np.arange(6, dtype="float32")
    np.testing.assert_array_equal(step(value), [0, 2])
    device.counts.reset()
    np.testing.assert_array_equal(step(value), [4, 6])
    assert (device.counts.uploads, device.counts.downloads) == (1, 1)
    assert type(i.get_value(borrow=True)) is np.ndarray


def test_a_new_value_from_the_device_is_copied_to_a_variable_of_the_host(device):
    y, s = pt.vector("y"), pytensor.shared(np.ones(3), shape=(3,))
    part = pt.specify_shape(y[: s.sum().astype("int64")], (3,))
    mode = array_mode(ArrayLinker(device))
    f = pytensor.function([y], [], updates=[(s, part / 2 + 0.25)], mode=mode)
    f(np.array([2.0, 1, 1, 9]))
    np.testing.assert_array_equal(s.get_value(), [1.25, 0.75, 0.75])


def test_a_shared_variable_may_come_from_the_other_side(device):
    x, n = pt.fvector("x"), pytensor.shared(np.asarray(2))
    on_host = pytensor.function([x], x[:n], mode=array_mode(ArrayLinker(device)))
    pytensor.function([], updates={n: n + 1}, mode=array_mode(ArrayLinker(device)))()
    assert type(n.get_value(borrow=True)) is device.ndarray
    assert len(on_host(np.ones(5, "float32"))) == 3


class Third(UnaryOp):
    """An Op that PyTensor alone can run, in place."""

    destroy_map = {0: [0]}  # noqa: RUF012

    def perform(self, node, inputs, outputs):
        inputs[0] /= 3
        outputs[0][0] = inputs[0]


def test_an_op_without_an_entry_computes_on_the_host(device):
    x = pt.dvector("x")
    y = x * 3
    function = on_device(device, [x], [Third()(y) + 1, y.sum()], accept_inplace=True)
    (node,) = function.vm.jit_fn.host_nodes
    assert isinstance(node.op, Third)
    assert function.vm.jit_fn.transfers == Transfers(uploads=2, downloads=3)
    third, total = function(np.ones(2))
    np.testing.assert_array_equal(third, 2)
    assert total == 6
    with pytest.raises(NotImplementedError, match="Third"):
        on_device(device, [x], Third()(x * 3), accept_inplace=True, host_ops="raise")


class Halve(UnaryOp):
    """An Op with an entry for NumPy only."""


@array_funcify.register(Halve)
def halve(op, node, xp):
    if xp is not np:
        return array_funcify.dispatch(object)(op, node, xp)
    return lambda x: np.divide(x, 2)


def test_an_entry_for_numpy_is_used_on_the_host(device):
    x = pt.dvector("x")
    function = on_device(device, [x], Halve()(x * 3) + 1)
    assert [type(node.op) for node in function.vm.jit_fn.host_nodes] == [Halve]
    np.testing.assert_array_equal(function(np.ones(2)), 2.5)


def test_inner_graphs_get_their_shapes_on_the_host(device):
    x, n = pt.fmatrix("x"), pt.lscalar("n")
    inner = OpFromGraph([x, n], [x.reshape((n, -1)) * n.astype("float32")])
    function = on_device(device, [x, n], inner(x + 1, n * 2), outputs="device")
    device.counts.reset()
    result = function(np.ones((2, 3), "float32"), 3)
    assert (device.counts.uploads, device.counts.downloads) == (1, 0)
    np.testing.assert_array_equal(result.get(), np.full((6, 1), 12))


def test_random_numbers_without_a_kernel_are_drawn_on_the_host_and_sent(device):
    rng = pytensor.shared(np.random.default_rng(1))
    next_rng, x = pt.random.laplace(size=500, rng=rng, return_next_rng=True)
    draws = []
    for linker in (ArrayLinker(), ArrayLinker(device)):
        rng.set_value(np.random.default_rng(1))
        function = pytensor.function([], x * 2, updates={rng: next_rng}, mode=array_mode(linker))
        draws.append([function() for _ in range(2)])
    assert len(function.vm.jit_fn.host_nodes) == 1
    assert function.vm.jit_fn.transfers == Transfers(uploads=1, downloads=1)
    np.testing.assert_array_equal(*draws)


def test_an_assertion_about_an_array_waits_for_one_number(device):
    x = pt.fvector("x")
    function = on_device(device, [x], Assert("positive")(x, (x > 0).all()) * 2, outputs="device")
    device.counts.reset()
    function(np.ones(3, "float32"))
    assert (device.counts.uploads, device.counts.downloads) == (1, 1)
    with pytest.raises(AssertionError, match="positive"):
        function(np.zeros(3, "float32"))


@pytest.mark.slow
def test_gradient_of_a_digit_network(device):
    """A perceptron 784-800-800-10 on batches of 250, its gradient one flat vector."""
    rng = np.random.default_rng(0)
    sizes = [784, 800, 800, 10]
    x, y = pt.fmatrix("x"), pt.lvector("y")
    weights = [
        pytensor.shared(rng.normal(0, 0.05, size).astype("float32")) for size in itertools.pairwise(sizes)
    ]
    biases = [pytensor.shared(np.zeros(n, "float32")) for n in sizes[1:]]
    hidden = x
    for weight, bias in list(zip(weights, biases, strict=True))[:-1]:
        hidden = pt.maximum(hidden @ weight + bias, 0)
    log_p = pt.special.log_softmax(hidden @ weights[-1] + biases[-1], axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    flat = pt.join(0, *[gradient.ravel() for gradient in pt.grad(loss, [*weights, *biases])])
    values = rng.random((250, 784), dtype="float32"), rng.integers(0, 10, 250)
    expected = pytensor.function([x, y], [loss, flat], mode=array_mode())(*values)
    function = on_device(device, [x, y], [loss, flat], outputs="device")
    function(*values)
    device.counts.reset()
    results = function(*values)
    assert function.vm.jit_fn.transfers == Transfers(uploads=2, downloads=0)
    assert (device.counts.uploads, device.counts.downloads) == (2, 0)
    assert device.counts.launches <= 60
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.get(), reference, rtol=1e-4, atol=1e-6)
