"""How regions run: errors of their nodes, interrupts, and what they give up at."""

import signal
import threading
import time
from itertools import permutations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import Assert
from pytensor.scalar import ScalarLoop, float64
from pytensor.scalar.basic import bool as boolean
from pytensor.scalar.basic import lt, tanh
from pytensor.scan.basic import scan
from pytensor.scan.op import Scan
from pytensor.tensor.blas import Dot22
from pytensor.tensor.elemwise import Elemwise

from support.regions.compiled import compiled, regions_of
from support.slow import slow
from synk.compile import ArrayLinker, Debug, array_mode
from synk.compile.regions.functions import RegionFunction

NEWER = hasattr(pytensor.graph.fg, "FrozenFunctionGraph")
DEBUG = array_mode(ArrayLinker(observe=Debug(), native=True))


def test_an_error_names_the_node_in_the_region_and_the_line_that_built_it():
    x, w, i = pt.matrix("x"), pt.vector("w"), pt.lvector("i")
    taken = (x * 2)[i]
    scaled = taken * w + 1
    function = compiled([x, w, i], [scaled.sum(), scaled])
    assert len(regions_of(function)) == 1
    with pytest.raises(IndexError, match="index 9 is out of bounds") as caught:
        function(np.ones((3, 2)), np.ones(2), [9])
    notes = "".join(caught.value.__notes__) + str(caught.value)
    assert "AdvancedSubtensor" in notes
    assert "taken = (x * 2)[i]" in notes
    with pytest.raises(ValueError, match="lengths 2 and 5 differ") as caught:
        function(np.ones((3, 2)), np.ones(5), [0])
    assert "scaled = taken * w + 1" in "".join(caught.value.__notes__) + str(caught.value)


def told(function, *values):
    """Return what the error of a call says."""
    with pytest.raises((IndexError, ValueError)) as caught:
        function(*values)
    return "\n".join([str(caught.value), *caught.value.__notes__])


def test_an_error_in_a_step_names_its_nodes_and_lines():
    x, h = pt.dmatrix("x"), pt.dvector("h")
    states = scan(lambda row, h: pt.tanh(row * h), sequences=x, outputs_info=h, return_updates=False)
    function = compiled([x, h], states)
    assert [type(node.op) for node in regions_of(function)[-1].op.fgraph.apply_nodes] == [Scan]
    text = told(function, np.ones((2, 3)), np.ones(2))
    assert text.index("lengths 3 and 2 differ") < text.index("Mul(") < text.index("Scan{")
    assert "states = scan(" in text
    assert __file__ in text.split("Scan{")[0] or NEWER  # which keeps no lines inside of an Op


def test_an_error_in_an_inner_graph_names_the_op_that_it_is_of():
    x, y = pt.dmatrices("xy")
    inner = OpFromGraph([x, y], [pt.exp(x[5])])
    text = told(compiled([x, y], inner(x, y)), np.ones((2, 3)), np.ones((1, 1)))
    assert text.index("Subtensor{i}(") < text.index("Inside of OpFromGraph{")
    assert __file__ in text


def test_what_has_no_factor_is_what_lapack_says():
    a, b = pt.tensor("a", shape=(3, 3), dtype="float64"), pt.tensor("b", shape=(3,), dtype="float64")
    outputs = [pt.linalg.cholesky(a) * 2, pt.linalg.solve_triangular(a, b, lower=True) * 2]
    functions = [
        pytensor.function([a, b], outputs, mode=array_mode(ArrayLinker(native=native)))
        for native in (True, False)
    ]
    for matrix in (np.eye(3), -np.eye(3), np.diag([1.0, 0, 1])):
        for found, expected in zip(*(function(matrix, np.ones(3)) for function in functions), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("outputs", "given", "error"),
    [
        (lambda x: x.max(axis=0) + 1, np.ones((0, 2)), ValueError),
        (lambda x: x.reshape((2, -1)) + 1, np.ones((3, 3)), ValueError),
        (
            lambda x: pt.exp(x.reshape((x.shape[1] + 2, x.shape[0] + 2**62 - 2))).max(),
            np.ones((4, 2)),
            ValueError,
        ),
        (lambda x: x[5] * 2, np.ones((3, 3)), IndexError),
        (lambda x: x @ x[0] * 2, np.ones((3, 2)) * 1, None),
        (lambda x: x.T @ x[0] * 2, np.ones((3, 2)), ValueError),
        (lambda x: pt.join(0, x, x.T) * 2, np.ones((3, 2)), ValueError),
    ],
)
def test_what_cannot_be_computed_raises_as_in_python(outputs, given, error):
    x = pt.dmatrix("x")
    for mode in (array_mode(), array_mode(ArrayLinker(native=False))):
        function = pytensor.function([x], outputs(x), mode=mode)
        if error is None:
            function(given)
        else:
            with pytest.raises(error):
                function(given)


def test_a_softmax_of_one_number_is_nan_where_that_is_not_finite():
    x = pt.tensor("x", dtype="float64", shape=(None, 1))
    values = np.array([[1.0], [np.inf], [-np.inf], [np.nan]])
    for made, finite in ((pt.special.softmax(x, axis=1), 1), (pt.special.log_softmax(2 * x, axis=1), 0)):
        for native in (True, False):
            found = pytensor.function([x], made, mode=array_mode(ArrayLinker(native=native)))(values)
            np.testing.assert_array_equal(found, [[finite], [np.nan], [np.nan], [np.nan]])


def test_a_maximum_of_no_rows_is_an_error_where_a_softmax_reads_it():
    x = pt.fmatrix()
    f = pytensor.function(
        [x], pt.special.softmax(pt.max(x, axis=0)), mode=array_mode(ArrayLinker(native=True))
    )
    with pytest.raises(ValueError, match="zero-size array"):
        f(np.zeros((0, 3), "float32"))


def test_what_a_softmax_is_made_of_is_computed_once():
    x, w = pt.fmatrix("x"), pytensor.shared(np.ones((5, 4), "float32"))
    loss = -pt.special.log_softmax(pt.tanh(x @ w), axis=1)[:, 0].mean()
    function = compiled([x], [loss, pytensor.grad(loss, w)])
    products = [node for node in function.maker.fgraph.apply_nodes if isinstance(node.op, Dot22)]
    assert len(products) == 2  # forward, and backward


@pytest.mark.parametrize("shape", [(24,), (6, 4), (2, 12), (3, 8), (2, 1, 3, 4), (2, 3, 2, 2), (1, 4, 6, 1)])
def test_a_reshape_is_numpys_however_elements_lie(shape):
    t = pt.dtensor3("t")
    function = compiled([t], t.reshape(shape) + 1)
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    for order in permutations(range(3)):
        cube = np.arange(24.0).reshape(np.take((2, 3, 4), np.argsort(order))).transpose(order)
        wide = np.repeat(cube, 2, axis=1)[:, ::2]
        for laid in (cube, cube[::-1], wide, np.broadcast_to(cube[:1], cube.shape)):
            np.testing.assert_array_equal(function(laid), laid.reshape(shape) + 1)


@pytest.mark.parametrize("wrong", [1000, -1001])
def test_a_position_out_of_range_is_found_wherever_it_is(wrong):
    x, i = pt.dvector("x"), pt.lvector("i")
    function = compiled([x, i], x[i] + 1)
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    values, positions = np.arange(1000.0), np.resize([999, -1000, 0, -1], 700)
    np.testing.assert_array_equal(function(values, positions), values[positions] + 1)
    for at in (0, 299, 699):
        positions[at], right = wrong, positions[at]
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            function(values, positions)
        positions[at] = right


def endless():
    """Return a function that takes hours, compiled."""
    s, n = pt.dscalar("s"), pt.lscalar("n")
    states = scan(lambda a: pt.tanh(a) + s, outputs_info=s, n_steps=n, return_updates=False)
    function = compiled([s, n], states[-1])
    function(0.5, 2)
    return lambda s: function(s, 10**12)


BEFORE = float64("before")
STEPS = Elemwise(ScalarLoop(init=[BEFORE], update=[tanh(BEFORE)], until=lt(BEFORE, 0)))  # which never is
STEPPING = {
    "a number": lambda s, n: STEPS(n, s)[0],
    "elements": lambda s, n: STEPS(n, s + pt.arange(50_000))[0].sum(),
    "a number in a loop": lambda s, n: scan(
        lambda a: STEPS(n, a)[0], outputs_info=s, n_steps=n, return_updates=False
    )[-1],
}


@pytest.mark.parametrize("of", [slow(of) if "number" in of else of for of in STEPPING])
def test_an_interrupt_ends_the_steps(of):
    s, n = pt.dscalar("s"), pt.lscalar("n")
    function = compiled([s, n], STEPPING[of](s, n))
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    expected = function(0.5, 2)
    run_until_interrupted(lambda: function(0.5, 10**15))
    np.testing.assert_array_equal(function(0.5, 2), expected)  # none of the next call's is left out


def test_a_state_may_say_when_the_steps_end_as_it_was_before_the_last():
    a, late = float64("a"), boolean("late")
    loop = Elemwise(ScalarLoop(init=[a, late], update=[a + 1, a > 2], until=late))
    x, flags = pt.dvector("x"), pt.tensor("flags", shape=(None,), dtype="bool")
    function = compiled([x, flags], loop(9, x, flags)[0])
    assert regions_of(function)
    np.testing.assert_array_equal(function(np.arange(3.0), np.array([False, False, True])), [5, 5, 3])


def test_an_interrupt_ends_a_loop():
    function = endless()
    run_until_interrupted(lambda: function(0.5))


def test_an_interrupt_ends_a_walk_between_its_rows():
    x, y = pt.dvectors("xy")
    function = compiled([x, y], [(x[:, None] * y).sum(), x.sum()])
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    for n in (2, 300):
        assert function(np.ones(n), np.ones(n))[0] == n * n
    run_until_interrupted(lambda: function(*np.ones((2, 10**6))))
    assert function(np.ones(3), np.ones(2)) == [6, 3]


@pytest.mark.slow
def test_an_interrupt_is_not_taken_for_what_a_region_gives_up_at():
    x, y, v, s, n = *pt.dvectors("xyv"), pt.dscalar("s"), pt.lscalar("n")

    def step(a):  # a walk that is cut short leaves a position out of range
        return v[(pt.maximum(x[:, None] * a, y).sum() - x.size * y.size).astype("int64")]

    function = compiled([x, y, v, s, n], scan(step, outputs_info=s, n_steps=n, return_updates=False)[-1])
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    assert function(*np.ones((2, 5)), np.ones(3), 1.0, 2) == 1
    run_until_interrupted(lambda: function(*np.ones((2, 10**6)), np.ones(3), 1.0, 2))
    assert function(*np.ones((2, 5)), np.ones(3), 1.0, 2) == 1


def run_until_interrupted(function):
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        function()
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            function()
    finally:
        signal.signal(signal.SIGALRM, before)


def products():
    """Return a function of fewer steps than loops of numbers take between two looks, all of them long."""
    a = pt.dmatrix("a")
    function = compiled([a], scan(lambda b: b @ a, outputs_info=a, n_steps=30, return_updates=False)[-1])
    assert not [node for node in function.maker.fgraph.apply_nodes if isinstance(node.op, Scan)]
    function(np.eye(2))
    return lambda: function(np.eye(600))


def chain():
    """Return a function of long nodes, one after another."""
    x = pt.dvector("x")
    y = x
    for _ in range(30):
        y = pt.tanh(y - y.max())
    function = compiled([x], y.sum())
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    function(np.ones(2))
    return lambda: function(np.linspace(0, 1, 2_000_000))


@pytest.mark.slow
@pytest.mark.parametrize("made", [slow(products), chain])
def test_signals_are_handled_between_long_steps_and_nodes(made):
    function, handled = made(), []
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(None))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        function()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(handled) > 4  # at the end of the call all that came would be handled as one


class Alarm(Exception):
    """What a handler raises."""


def alarm(number, frame):
    raise Alarm


def test_other_threads_run_during_a_loop():
    function, ticks = endless(), []

    def tick():
        for _ in range(20):
            time.sleep(0.01)
            ticks.append(None)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=tick)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        function(0.5)
    thread.join()
    assert len(ticks) == 20


def test_a_condition_is_checked_in_the_region_and_what_it_says_in_python():
    x, s = pt.dvector("x"), pt.dscalar("s")
    positive = Assert("scale is not positive")(x * 2, s > 0, pt.lt(s, 10))
    function = compiled([x, s], (positive / s).sum())
    assert len(regions_of(function)) == len(function.maker.fgraph.apply_nodes) == 1
    assert function(np.ones(3), 2.0) == 3
    for wrong in (-1.0, 10.0):
        with pytest.raises(AssertionError, match="scale is not positive"):
            function(np.ones(3), wrong)


def test_debug_compares_a_region_with_its_nodes(monkeypatch):
    x = pt.dmatrix("x")
    function = pytensor.function([x], pt.exp(x * 2).sum(axis=0), mode=DEBUG)
    assert regions_of(function)
    function(np.ones((4, 3)))
    whole = RegionFunction.__call__
    monkeypatch.setattr(RegionFunction, "__call__", lambda self, *a, **k: whole(self, *a, **k) + 1)
    function = pytensor.function([x], pt.exp(x * 2).sum(axis=0), mode=DEBUG)
    with pytest.raises(Exception, match="values of output 0 are wrong"):
        function(np.ones((4, 3)))
