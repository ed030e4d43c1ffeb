import gc
import weakref
from contextlib import nullcontext

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.scalar import ScalarLoop, float64, int64
from pytensor.scan.op import Scan
from pytensor.scan.utils import until
from pytensor.tensor.elemwise import Elemwise

from support.cases.unary_op import UnaryOp
from support.slow import slow
from synk.compile import ArrayLinker, array_funcify, array_mode
from synk.compile.compat import optional_class
from synk.compile.rewriting.rewrites import array_query
from synk.compile.rewriting.until_gradients import WRONG

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")

# Arrays of a Scan that keep the last rows only.
SHORT = Mode(ArrayLinker(host_ops="raise"), array_query(np).including("scan_save_mem_no_prealloc"))

PYTHON = Mode(ArrayLinker(host_ops="raise", native=False), SHORT.provided_optimizer)


def scan(step, **keywords):
    return pytensor.scan(step, return_updates=False, **keywords)


def scans_of(function):
    return [node for node in function.maker.fgraph.toposort() if isinstance(node.op, Scan)]


def check_short(oracle, inputs, outputs, values):
    """Compare with the oracle where arrays are as short as can be; return the function."""
    expected = oracle(inputs, outputs, values)
    function = pytensor.function(inputs, outputs, mode=SHORT)
    for _ in range(2):
        before = [np.array(value) for value in values]
        for result, reference in zip(function(*values), expected, strict=True):
            np.testing.assert_allclose(result, reference, strict=True)
        for value, old in zip(values, before, strict=True):
            np.testing.assert_array_equal(value, old)
    return function


# --- what a step reads and writes


def test_sequences_states_and_constants(compare):
    x, h, w = pt.dmatrix("x"), pt.dvector("h"), pt.dmatrix("w")
    states = scan(lambda row, h, w: pt.tanh(row + h @ w), sequences=x, outputs_info=h, non_sequences=w)
    values = [np.arange(12.0).reshape(4, 3), np.ones(3), np.eye(3) / 2]
    compare([x, h, w], [states, states[-1], states.sum(axis=0)], values)


def test_results_that_are_no_states(compare):
    x, y = pt.dvector("x"), pt.dmatrix("y")
    outputs = scan(lambda a, row: [a * 2, row + a, row.sum()], sequences=[x, y])
    compare([x, y], outputs, [np.arange(3.0), np.ones((3, 2))])


def test_several_rows_back(compare):
    start, x = pt.dmatrix("start"), pt.dvector("x")
    outputs = scan(
        lambda now, later, a, b: 2 * a + b + now - later,
        sequences={"input": x, "taps": [0, 2]},
        outputs_info={"initial": start, "taps": [-3, -1]},
    )
    compare([start, x], [outputs], [np.ones((3, 2)), np.arange(7.0)])


def test_gradient(compare):
    x, h, w = pt.dmatrix("x"), pt.dvector("h"), pt.dmatrix("w")
    states = scan(lambda row, h, w: pt.tanh(row + h @ w), sequences=x, outputs_info=h, non_sequences=w)
    gradients = pytensor.grad((states**2).sum() + states[-1].sum(), [x, h, w])
    values = [np.linspace(-1, 1, 12).reshape(4, 3), np.ones(3), np.eye(3) / 2]
    compare([x, h, w], gradients, values)


@pytest.mark.slow
def test_gradient_through_rows_further_back(compare):
    start, w = pt.dmatrix("start"), pt.dmatrix("w")
    states = scan(
        lambda a, b, w: pt.tanh(b @ w + a),
        outputs_info={"initial": start, "taps": [-2, -1]},
        non_sequences=w,
        n_steps=5,
    )
    compare([start, w], pytensor.grad(states.sum(), [start, w]), [np.ones((2, 3)), np.eye(3)])


@pytest.mark.slow
def test_gradient_of_a_gradient(compare):
    x = pt.dscalar("x")
    y = scan(lambda a, x: a * x, outputs_info=pt.ones(()), non_sequences=x, n_steps=4)[-1]
    first = pytensor.grad(y, x)
    compare([x], [first, pytensor.grad(first, x)], [np.array(3.0)])


@pytest.mark.slow
def test_gradient_of_the_last_steps_only(compare):
    x, w = pt.dvector("x"), pt.dscalar("w")
    states = scan(
        lambda a, h, w: h * w + a,
        sequences=x,
        outputs_info=pt.zeros(()),
        non_sequences=w,
        truncate_gradient=2,
    )
    compare([x, w], pytensor.grad(states[-1], [x, w]), [np.arange(5.0), np.array(0.5)])


@pytest.mark.parametrize("limit", [slow(-1.0), 20.0, 1e9])
def test_until_a_condition_holds(compare, limit):
    x, stop = pt.dvector("x"), pt.dscalar("stop")

    def step(a, total, stop):
        total = total + a
        return [total, a * 2], until(total > stop)

    outputs = scan(step, sequences=x, outputs_info=[pt.zeros(()), None], non_sequences=stop)
    compare([x, stop], [*outputs, outputs[0][-1]], [np.arange(9.0), np.array(limit)])


def test_gradient_of_steps_until_a_condition_holds(compare):
    x = pt.dvector("x")
    total = scan(lambda a, t: (t * a, until(t > 20)), sequences=x, outputs_info=pt.ones(()))
    # PyTensor before 3.1.1 takes this gradient of the wrong steps.
    refused = pytest.raises(NotImplementedError, match="use PyTensor 3.1.1") if WRONG else nullcontext()
    with refused:
        compare([x], [pytensor.grad(total[-1], x)], [np.arange(1.0, 9.0)])


def test_no_steps(compare):
    x, h = pt.dmatrix("x"), pt.dvector("h")
    states, others = scan(lambda row, h: [h + row, row[:2] * 2], sequences=x, outputs_info=[h, None])
    compare([x, h], [states, others.shape[0]], [np.ones((0, 3)), np.ones(3)])


def test_number_of_steps_is_a_variable(compare):
    n, h = pt.lscalar("n"), pt.dvector("h")
    states = scan(lambda h: h * 2, outputs_info=h, n_steps=n)
    compare([n, h], [states], [np.array(3), np.ones(2)])


# --- arrays that are used round and round


@pytest.mark.parametrize("kept", [1, *map(slow, [2, 3, 6]), 7])
def test_last_rows(oracle, kept):
    h = pt.dvector("h")
    states = scan(lambda h: h * 2 + 1, outputs_info=h, n_steps=7)
    function = check_short(oracle, [h], [states[-kept:]], [np.ones(2)])
    (node,) = scans_of(function)
    rows = node.op.outer_sitsot(node.inputs)
    assert [array.type.shape[0] for array in rows] == ([] if kept == 1 else [kept + (kept == 7)])


@pytest.mark.parametrize("kept", [slow(1), slow(2), 4])
def test_last_rows_of_states_further_back(oracle, kept):
    start, n = pt.dmatrix("start"), pt.lscalar("n")
    start = pt.specify_shape(start, (3, 2))
    states, others = scan(
        lambda a, b: [a + 2 * b, a.sum()],
        outputs_info=[{"initial": start, "taps": [-3, -1]}, None],
        n_steps=n,
    )
    check_short(oracle, [start, n], [states[-kept:], others[-kept:]], [np.ones((3, 2)), np.array(8)])


def test_last_row_of_a_loop_with_a_condition(oracle):
    x = pt.dvector("x")
    total = scan(lambda a, t: (t + a, until(t > 5)), sequences=x, outputs_info=pt.zeros(()))
    check_short(oracle, [x], [total[-1]], [np.arange(9.0)])


# --- memory


@pytest.mark.parametrize("add", [0.0, slow(1.0)])
def test_states_change_places(oracle, add):
    a, b = pt.tensor("a", shape=(2, 3)), pt.tensor("b", shape=(2, 3))

    def step(a2, a1, b2, b1, total):
        return b2 + add, a2 + add, total + a1.sum() - 2 * b1.sum()

    outputs = scan(
        step,
        outputs_info=[{"initial": a, "taps": [-2, -1]}, {"initial": b, "taps": [-2, -1]}, np.float64(0)],
        n_steps=5,
    )
    values = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    check_short(oracle, [a, b], [outputs[2]], values)
    check_short(oracle, [a, b], [output[-1] for output in outputs], values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "echo", [*map(slow, ["row", "constant", "read", "made", "reversed"]), "written", "state"]
)
def test_states_that_share_memory(oracle, echo):
    x, c = pt.dmatrix("x"), pt.dvector("c")

    def step(row, total, read, state, other, c):
        written, made = read + row, row * 2
        echoes = {"row": row, "constant": c, "read": read, "written": written, "state": state, "made": made}
        return total + other + state, written, made, echoes.get(echo, other[::-1])

    zeros = pt.zeros(3)
    outputs = scan(step, sequences=x, outputs_info=[zeros, zeros, zeros, zeros + c], non_sequences=c)
    values = [np.arange(15.0).reshape(5, 3), np.arange(3.0)]
    check_short(oracle, [x, c], outputs[:2], values)
    check_short(oracle, [x, c], [output[-1] for output in outputs], values)


def test_states_that_are_constants_or_each_other(oracle):
    x = pt.dmatrix("x")

    def step(row, total, a, b, c):
        shared = row * 2
        return total + a - b[::-1] + c, shared, shared, pt.ones(3)

    zeros = pt.zeros(3)
    outputs = scan(step, sequences=x, outputs_info=[zeros] * 4)
    check_short(oracle, [x], [output[-1] for output in outputs], [np.arange(15.0).reshape(5, 3)])


def test_initial_values_stay_as_they_are(compare):
    h = pt.dvector("h")
    total = scan(lambda h: h[:1].inc(1), outputs_info=h, n_steps=3)[-1]
    compare([h], [total, h * 2, h], [np.zeros(2)])


def test_states_change_but_not_their_initial_values():
    h = pt.tensor("h", shape=(3,))
    last = scan(lambda h: h[:1].inc(1) * 2, outputs_info=h, n_steps=4)[-1]
    function = pytensor.function([h], [last], mode=PYTHON)
    (node,) = scans_of(function)
    assert node.op.info.n_untraced_sit_sot == 1
    start = np.zeros(3)
    np.testing.assert_array_equal(function(start)[0], [30, 0, 0])
    np.testing.assert_array_equal(start, 0)


def test_intermediates_of_a_step_die():
    alive = []

    class Watched(np.ndarray):
        pass

    class Watch(UnaryOp):
        pass

    references = []

    @array_funcify.register(Watch)
    def watch(op, node, xp):
        def copy(x):
            alive.append(sum(reference() is not None for reference in references))
            result = x.copy().view(Watched)
            references.append(weakref.ref(result))
            return result

        return copy

    x = pt.dmatrix("x")
    outputs = scan(lambda row: (Watch()(row) * 2).sum(), sequences=x)
    function = pytensor.function([x], outputs, mode=array_mode())
    gc.disable()
    try:
        function(np.ones((4, 3)))
    finally:
        gc.enable()
    assert alive == [0, 0, 0, 0]


# --- what a step contains


@pytest.mark.slow
def test_scan_in_a_scan(compare):
    x = pt.dmatrix("x")

    def outer(row, total):
        inner = scan(lambda a, t: t * 2 + a, sequences=row, outputs_info=pt.zeros(()))
        return total + inner[-1]

    totals = scan(outer, sequences=x, outputs_info=pt.zeros(()))
    compare([x], [totals, pytensor.grad(totals[-1], x)], [np.arange(6.0).reshape(2, 3)])


@pytest.mark.slow
def test_choice_in_a_scan(compare):
    x = pt.dvector("x")
    outputs = scan(lambda a, t: ifelse(a > 1, t + a, t * pt.exp(a)), sequences=x, outputs_info=pt.ones(()))
    compare([x], [outputs, pytensor.grad(outputs.sum(), x)], [np.array([0.5, 2, 0.1])])


@pytest.mark.slow
def test_inner_graph_in_a_scan(compare):
    x = pt.dmatrix("x")
    a = pt.dvector("a")
    op = OpFromGraph([a], [pt.exp(a)[1:].set(0.0), a])
    outputs = scan(lambda row, t: t + op(row)[0] * op(row)[1], sequences=x, outputs_info=pt.zeros(3))
    compare([x], [outputs], [np.arange(6.0).reshape(2, 3)])


def test_random_numbers_differ_from_step_to_step():
    generator = pytensor.shared(np.random.default_rng(3), borrow=False)

    def step(state, generator):
        generator, draw = pt.random.normal(size=2, rng=generator, return_next_rng=True)
        return state + draw, generator

    start = generator
    states, after = scan(step, outputs_info=[pt.zeros(2), start], n_steps=4)
    function = pytensor.function(
        [], states, updates={generator: after}, mode=array_mode(), accept_inplace=True
    )
    assert function.vm.jit_fn.host_nodes == ()
    draws = np.random.default_rng(3)
    for _ in range(2):
        # The second call goes on where the first one stopped.
        expected = np.cumsum([draws.standard_normal(2) for _ in range(4)], axis=0)
        np.testing.assert_allclose(function(), expected)


# --- errors


def test_too_few_rows():
    n, x = pt.lscalar("n"), pt.dvector("x")
    totals = scan(lambda a, t: a + t, sequences=x, outputs_info=pt.zeros(()), n_steps=n)
    function = pytensor.function([n, x], totals, mode=array_mode())
    with pytest.raises(ValueError, match="sequence 0 of a Scan has 3 rows, fewer than its 4 steps"):
        function(4, np.ones(3))


def test_negative_number_of_steps():
    n = pt.lscalar("n")
    function = pytensor.function(
        [n], scan(lambda a: a * 2, outputs_info=pt.ones(()), n_steps=n), mode=Mode(ArrayLinker(), None)
    )
    with pytest.raises(IndexError, match="-1 steps"):
        function(-1)


def test_error_in_a_step_names_its_node():
    x, h = pt.dmatrix("x"), pt.dvector("h")
    states = scan(lambda row, h: pt.tanh(row * h), sequences=x, outputs_info=h)
    function = pytensor.function([x, h], states, mode=array_mode())
    with pytest.raises(ValueError, match="lengths 3 and 2 differ along axis 0") as caught:
        function(np.ones((2, 3)), np.ones(2))
    notes = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "Mul(" in notes
    assert "Scan{" in notes


def test_host_nodes_of_a_step_are_reported():
    class Unknown(UnaryOp):
        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0] * 2

    x = pt.dmatrix("x")
    outputs = scan(lambda row: Unknown()(row), sequences=x)
    function = pytensor.function([x], outputs, mode=array_mode())
    assert [type(node.op) for node in function.vm.jit_fn.host_nodes] == [Unknown]
    np.testing.assert_array_equal(function(np.ones((2, 3))), 2 * np.ones((2, 3)))
    with pytest.raises(NotImplementedError, match="Unknown"):
        pytensor.function([x], outputs, mode=array_mode(ArrayLinker(host_ops="raise")))


# --- loops over elements


def test_loop_over_elements(compare):
    a, b, c = float64("a"), float64("b"), float64("c")
    loop = Elemwise(ScalarLoop(init=[a, b], update=[a + b, b * c], constant=[c]))
    n, x, y = pt.lvector("n"), pt.dmatrix("x"), pt.dvector("y")
    outputs = loop(n, x, pt.ones((1, 3)), y)
    compare([n, x, y], outputs, [np.array([0, 1, 4]), np.arange(6.0).reshape(2, 3), np.array([1.0, 2, 3])])


def test_loop_over_elements_with_a_condition(compare):
    a = float64("a")
    loop = Elemwise(ScalarLoop(init=[a], update=[a * 2], until=a * 2 > 10))
    n, x = pt.lscalar("n"), pt.dvector("x")
    compare([n, x], loop(n, x), [np.array(3), np.array([0.1, 4, 6, -1])])
    compare([n, x], loop(n, x), [np.array(0), np.array([0.1, 4, 6, -1])])
    compare([n, x], loop(n, x), [np.array(3), np.array([])])


def test_loop_over_scalars():
    n, a = int64("n"), float64("a")
    loop = ScalarLoop(init=[a], update=[a + 1], until=a + 1 >= 10)
    function = pytensor.function([n, a], loop(n, a), mode=array_mode(ArrayLinker(host_ops="raise")))
    assert function(20, 0.0) == [10, True]
    assert function(5, 1.0) == [6, False]


def test_negative_number_of_steps_of_a_loop_over_elements():
    a = float64("a")
    n, x = pt.lvector("n"), pt.dvector("x")
    output = Elemwise(ScalarLoop(init=[a], update=[a + 1]))(n, x)
    function = pytensor.function([n, x], output, mode=array_mode())
    with pytest.raises(ValueError, match="ScalarLoop of -2 steps"):
        function(np.array([1, -2]), np.ones(2))
