"""Loops on simulated ranks give one process's numbers: values, gradients, and how often the ranks meet."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.utils import until

from support.exact.simulated import OneProcess, Simulated
from support.slow import slow
from synk.exact.define import define

pytestmark = pytest.mark.usefixtures("steps_as_written")

ROWS, RANKS = (7, 2), (1, 2, 5)
TIMES = 3

x, m, y = pt.tensor3("x"), pt.matrix("m"), pt.vector("y")
w = pytensor.shared(np.linspace(-1, 1, 4).reshape(2, 2), name="w")
v = pytensor.shared(np.array([0.3, 0.4]), name="v")
xt = x.dimshuffle(1, 0, 2)
DRAWN = {x: (TIMES, 2), m: (2,), y: ()}


def scan(step, **arguments):
    return pytensor.scan(step, return_updates=False, **arguments)


def zeros():
    return pt.zeros((x.shape[0], 2))


def zero():
    return pt.constant(0.0, dtype="float64")


def inputs_of(results):
    """Return the scattered variables that results need."""
    ancestors = set(pytensor.graph.traversal.ancestors(results))
    return [variable for variable in DRAWN if variable in ancestors]


def compared(results):
    """Compare with one process; return how many collectives there were, and how many gathers, by rows."""
    inputs = inputs_of(results)
    definition = define("loop", inputs, list(results))
    simulated, alone = Simulated(definition), OneProcess(definition)
    counts = {}
    for n in ROWS:
        rng = np.random.default_rng(n)
        values = [rng.normal(size=(n, *DRAWN[variable])) for variable in inputs]
        expected = alone(values)
        for n_ranks in RANKS:
            found = simulated(values, n_ranks)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
            counts[n] = simulated.together.count, simulated.together.gathered
    return counts


def recurrent():
    return scan(lambda x_t, h: pt.tanh(x_t @ w + h), sequences=[xt], outputs_info=[zeros()])


def with_older_states():
    return scan(
        lambda x_0, x_1, a, b: pt.tanh(x_0 + x_1 @ w + 0.2 * a - 0.3 * b),
        sequences=[{"input": xt, "taps": [0, -1]}],
        outputs_info=[{"initial": pt.zeros((2, x.shape[0], 2)), "taps": [-1, -2]}],
    )


def nested():
    def step(x_t, h):
        return scan(lambda g: pt.tanh(g @ w + x_t), outputs_info=[h], n_steps=2)[-1]

    return scan(step, sequences=[xt], outputs_info=[zeros()])


def total_of_all_times():
    """The state adds up sums over rows, and what counts once."""
    return scan(lambda x_t, s: s + (x_t**2).sum() + (w**2).sum(), sequences=[xt], outputs_info=[zero() + 0.5])


def mean_and_number_of_rows():
    return scan(lambda x_t, s: s + x_t.mean() + x_t.shape[0], sequences=[xt], outputs_info=[zero()])


def rows_beside_a_total():
    a, b = scan(
        lambda x_t, s, h: (s + h.sum(), pt.tanh(x_t + h)), sequences=[xt], outputs_info=[zero(), zeros()]
    )
    return a + b.sum(axis=(1, 2))


def filled_with_what_all_ranks_have():
    """The state begins the same for all rows, which each rank has its own of."""
    start = pt.zeros((x.shape[0], 2)) + v
    return scan(lambda x_t, h: pt.tanh(x_t + h @ w), sequences=[xt], outputs_info=[start])


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop",
    [
        slow(recurrent),
        slow(with_older_states),
        nested,
        total_of_all_times,
        slow(mean_and_number_of_rows),
        slow(rows_beside_a_total),
        filled_with_what_all_ranks_have,
    ],
)
def test_a_loop_along_another_axis_than_that_of_rows_has_no_collective_inside(loop):
    states = loop()
    assert set(compared([states]).values()) == {(0, 0)}
    variables = [one for one in (x, m, y) if one in inputs_of([states])]
    # A sum of what each row adds to the total is linear in what ranks have.
    gradients = pytensor.grad(
        (states if states.type.ndim == 1 else states**2).sum(),
        [w, v, *variables],
        disconnected_inputs="ignore",
    )
    assert set(compared(gradients).values()) <= {(0, 0), (1, 0)}


def newton():
    def step(b):
        p = pt.sigmoid(m @ b)
        gradient = m.T @ (p - y) / m.shape[0] + 0.01 * b
        curvature = (m.T * (p * (1 - p))) @ m / m.shape[0] + 0.01 * pt.eye(2)
        return b - pt.linalg.solve(curvature, gradient)

    return scan(step, outputs_info=[v], n_steps=3)


def descent():
    return scan(lambda b: b - 0.1 * m.T @ (m @ b - y) / m.shape[0], outputs_info=[v], n_steps=3)


def power_iteration():
    def step(u):
        z = m.T @ (m @ u)
        return z / pt.sqrt((z**2).sum())

    return scan(step, outputs_info=[v], n_steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("loop", [newton, slow(descent), slow(power_iteration)])
def test_a_state_made_of_all_rows_is_completed_once_a_step_and_nothing_is_gathered(loop):
    states = loop()
    assert set(compared([states]).values()) == {(3, 0)}
    gradients = pytensor.grad((states**2).sum(), [v, m])
    assert {gathered for _, gathered in compared(gradients).values()} == {0}


@pytest.mark.slow
def test_statistics_of_all_rows_in_each_step_are_completed_there():
    def step(x_t, h):
        h = pt.tanh(x_t @ w + h)
        return (h - h.mean(axis=0)) / pt.sqrt(h.var(axis=0) + 0.1)

    states = scan(step, sequences=[xt], outputs_info=[zeros()])
    assert set(compared([states]).values()) == {(2 * TIMES, 0)}
    assert {gathered for _, gathered in compared(pytensor.grad((states**2).sum(), [w, x])).values()} == {0}


def test_parts_that_steps_need_complete_are_completed_before_the_loop():
    def step(x_t, h, mean):
        return pt.tanh(x_t @ w + h * mean)

    states = scan(step, sequences=[xt], outputs_info=[zeros()], non_sequences=[m.mean(axis=0)])
    assert set(compared([states]).values()) == {(1, 0)}
    totals = scan(lambda t, s: pt.tanh(t) + s, sequences=[x.sum(axis=0)], outputs_info=[pt.zeros(2)])
    assert set(compared([totals]).values()) == {(1, 0)}


def test_all_ranks_leave_a_loop_at_the_same_step():
    def step(b):
        new = b - 0.3 * m.T @ (m @ b - y) / m.shape[0]
        return new, until(abs(new - b).max() < 1e-2)

    states = scan(step, outputs_info=[v], n_steps=20)
    assert {gathered for _, gathered in compared([states]).values()} == {0}
    halved = scan(lambda b: (0.5 * b, until(abs(b).max() < 0.1)), outputs_info=[m], n_steps=20)
    assert {gathered for _, gathered in compared([halved]).values()} == {0}


@pytest.mark.parametrize(
    "loop",
    [
        lambda: scan(lambda row: pt.tanh(row @ w) * row.sum(), sequences=[m]),
        slow(lambda: scan(lambda row, s: 0.5 * s + row, sequences=[m], outputs_info=[pt.zeros(2)])),
        lambda: scan(lambda row: ((m - row) ** 2).sum(axis=1), sequences=[m]),
    ],
)
def test_a_loop_over_rows_goes_through_those_of_all_ranks(loop):
    values = loop()
    assert set(compared([values]).values()) == {(1, 1)}
    compared(pytensor.grad((values**2).sum(), [w, m], disconnected_inputs="ignore"))


def test_rows_that_meet_in_each_step_are_gathered_before_the_loop():
    states = scan(
        lambda x_t, h: pt.tanh(pt.special.softmax(h @ h.T, axis=1) @ x_t), sequences=[xt], outputs_info=[m]
    )
    assert set(compared([states]).values()) == {(2, 2)}
    compared(pytensor.grad((states**2).sum(), [x, m]))


def test_draws_inside_of_a_loop_are_rows_of_each_rank():
    rng = pt.random.shared_rng(seed=3)

    def step(x_t, h, state):
        state, kept = state.bernoulli(0.5, size=h.shape)
        return pt.tanh(x_t + h * kept), state

    h, last = scan(step, sequences=[xt], outputs_info=[zeros(), rng])
    definition = define("dropout", [x], [h, h.mean()], updates=[(rng, last)])
    simulated = Simulated(definition)
    assert simulated.exact.output_modes == ("gather", "sum")
    assert simulated.exact.output_axes == (1, 0)
