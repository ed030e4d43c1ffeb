"""Results in which ranks meet, in several slices: one process's numbers, if parts of them accumulate."""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of, same_on_all
from support.slow import slow
from synk.compile import array_mode
from synk.exact.collectives.collectives import all_sum
from synk.exact.collectives.marks import addend
from synk.exact.define import define
from synk.exact.parts import cut
from synk.exact.results import exact_definition

module_ranks = runs_of(3, later=[1])

RNG = np.random.default_rng(8)
X, Y, WEIGHTS = RNG.normal(size=(11, 2)), RNG.normal(size=11), RNG.uniform(0.5, 2, size=11)
N_ROWS = [11, 4, 2, 1, 0]  # of three ranks with 3 slices: some have fewer slices, some no rows

x, y, weights = pt.matrix("x"), pt.vector("y"), pt.vector("weights")


def new_w():
    return pytensor.shared(np.array([0.5, -1.0]), name="w")


@pytest.fixture
def w():
    return new_w()


def results_of(w):
    """Return outputs in which ranks meet once, and some in which they do not."""
    error = x @ w - y
    return [
        pt.sqrt((error**2).sum()),
        (weights * error**2).sum() / weights.sum(),
        pt.exp(-x.max(axis=0)) + pt.minimum(y.min(), 0) ** 2,
        pt.log((x**2).sum() + pt.sum(w**2)),  # of which a part is the same on all ranks
        pt.sqrt(pt.gt(y, 0).sum()) / pt.sqrt(synk.n_rows),
        (x**2).mean(axis=0),
        error,
        error.max(),
    ]


def one_process(inputs, results, updates=()):
    mode = array_mode()
    return pytensor.function(inputs, results, updates=updates, mode=mode, on_unused_input="ignore")


@pytest.fixture(scope="module")
def outputs_on_ranks_and_alone(module_ranks):
    w = new_w()
    of_all_rows = results_of(w)
    of_all_rows[4] = pt.sqrt(pt.gt(y, 0).sum()) / pt.sqrt(y.shape[0])
    inputs = [x, y, weights]
    return synk.function(inputs, results_of(w)), one_process(inputs, of_all_rows)


@pytest.mark.parametrize("num_slices", [2, 3, 5])
@pytest.mark.parametrize("n", N_ROWS[:-1])
def test_outputs_are_those_of_one_process_whatever_the_slices(outputs_on_ranks_and_alone, n, num_slices):
    f, alone = outputs_on_ranks_and_alone
    values = X[:n], Y[:n], WEIGHTS[:n]
    wanted = alone(*values)
    for _ in range(2):
        for found, expected in zip(f(*values, num_slices=num_slices), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


BEGIN = np.zeros(2), np.array([0.5, -1.0]), 0


class Training(NamedTuple):
    """One step of an optimiser, and the average, the parameters and the number of calls that it updates."""

    loss: object
    step: object
    variables: list
    updates: list


def training():
    w, step, average = new_w(), pt.scalar("step"), pytensor.shared(np.zeros(2), name="average")
    calls = pytensor.shared(0, name="calls")
    loss = ((x @ w - y) ** 2).mean() + 0.01 * (w**2).sum()
    velocity = 0.9 * average + pytensor.grad(loss, w)
    updates = [(average, velocity), (w, w - step * velocity), (calls, calls + 1)]
    return Training(loss, step, [average, w, calls], updates)


@pytest.fixture(scope="module")
def steps_on_ranks_and_alone(module_ranks):
    """Return a step, the variables that it updates, and a declared one; the first two in one process, too."""
    ours, seen = training(), pytensor.shared(0.0, name="seen")
    updates = [*ours.updates, (seen, y.sum(), "sum")]
    on_ranks = synk.function([x, y], ours.loss, bcast_inputs=[ours.step], updates=updates, name="learn")
    other = training()
    alone = one_process([x, y, other.step], other.loss, other.updates)
    return on_ranks, ours.variables, seen, alone, other.variables


@pytest.mark.slow
@pytest.mark.parametrize("n", N_ROWS)
def test_steps_of_an_optimiser_are_those_of_one_process(module_ranks, steps_on_ranks_and_alone, n):
    on_ranks, variables, seen, alone, of_one_process = steps_on_ranks_and_alone
    synk.broadcast(variables, BEGIN)
    for variable, value in zip(of_one_process, BEGIN, strict=True):
        variable.set_value(value)
    for _ in range(3):
        expected = alone(X[:n], Y[:n], 0.1)
        np.testing.assert_allclose(on_ranks(X[:n], Y[:n], 0.1, num_slices=3), expected, rtol=1e-12)
    for variable, other in zip(variables, of_one_process, strict=True):
        np.testing.assert_allclose(same_on_all(variable, module_ranks), other.get_value(), rtol=1e-12)
    # A declared update is each rank's own.
    own = [part.sum() for part in np.array_split(Y[:n], module_ranks)]
    np.testing.assert_allclose(synk.gather(seen), own)


def test_ranks_meet_once_a_call_whatever_the_slices(module_ranks, w):
    """So calls in slices and calls without them can follow each other, and ranks do not wait for ever."""
    total = pytensor.shared(0.0, name="total")
    f = synk.function([x, y], updates=[(total, total + pt.tanh((x @ w - y).sum()) ** 2)])
    expected = 0.0
    for n, num_slices in [(11, 3), (2, 1), (1, 4), (11, 1), (4, 2), (7, 9)]:
        f(X[:n], Y[:n], num_slices=num_slices)
        expected += np.tanh((X[:n] @ [0.5, -1.0] - Y[:n]).sum()) ** 2
        np.testing.assert_allclose(same_on_all(total, module_ranks), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [slow("float16"), "float32", slow("int32"), "bool"])
def test_parts_keep_their_dtype(module_ranks, dtype):
    z = pt.vector("z", dtype=dtype)
    values = (np.arange(11) % 3).astype(dtype)
    largest = pt.invert(z.max()) if dtype in ("int32", "bool") else pt.sqrt(z.max() + z.sum())
    f = synk.function([z], [largest, pt.sqrt(z.astype("float64").sum())])
    wanted = one_process([z], f._written.outputs)(values)
    for found, expected in zip(f(values, num_slices=2), wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", [slow("debug"), slow("FAST_COMPILE")])
def test_in_other_modes(module_ranks, w, mode):
    f = synk.function([x, y], updates=[(w, w - 0.1 * pytensor.grad(((x @ w - y) ** 2).mean(), w))], mode=mode)
    expected = w.get_value() - 0.2 * X.T @ (X @ w.get_value() - Y) / 11
    f(X, Y, num_slices=3)
    np.testing.assert_allclose(same_on_all(w, module_ranks), expected)


def test_sliceable_rows_accumulate_too(module_ranks):
    rows, seen = pytensor.shared(np.zeros((0, 2)), name="rows"), pytensor.shared(0.0, name="seen")
    synk.scatter(rows, X)
    f = synk.function([], rows.sum(0), updates=[(seen, rows.sum() ** 2)], sliceable_shareds=[rows])
    np.testing.assert_allclose(f(num_slices=3), X.sum(0))
    np.testing.assert_allclose(same_on_all(seen, module_ranks), X.sum() ** 2)


def test_draws_advance_slice_by_slice(module_ranks):
    state = pytensor.shared(np.random.default_rng(3), name="state")
    following, draws = pt.random.normal(size=(x.shape[0],), rng=state, return_next_rng=True)
    f = synk.function([x], [(draws, "gather"), pt.sqrt((draws**2).sum())], updates=[(state, following)])
    before = 0.0
    for _ in range(2):
        drawn, norm = f(X, num_slices=3)
        assert len(set(drawn.tolist()) | {before}) == 12  # none of them twice
        np.testing.assert_allclose(norm, np.sqrt((drawn**2).sum()))
        before = drawn[0]


def test_a_program_is_compiled_ahead_of_the_call(module_ranks, w):
    f = synk.function([x], pt.sqrt((x @ w).sum() ** 2))
    synk.distribute(num_slices=2)
    compiled = vars(synk.run.session.current.session("test")._rank.program(f.ready()).variants)
    assert {"divided", "completed"} <= set(compiled)
    np.testing.assert_allclose(f(X, num_slices=2), abs((X @ w.get_value()).sum()))


def weighted(w):
    return (weights * (x @ w - y) ** 2).sum() / weights.sum()


def loop(w):
    levels = lambda before: pt.tanh((x @ before).sum(0) * before)  # noqa: E731
    return pytensor.scan(levels, None, w, n_steps=2, return_updates=False)[-1]


AGAIN = "rows, or draws, are needed again after the ranks have met for a value of all rows"
REFUSED = {
    "std": (lambda w: x.std(), AGAIN, "x.std()"),
    "rows after a sum": (lambda w: x / x.sum(), AGAIN, "x / x.sum()"),
    "gradient of a mean with weights": (lambda w: pytensor.grad(weighted(w), w), AGAIN, "return (weights *"),
    "gathered": (lambda w: pt.sort(y)[1], "all rows are gathered", "pt.sort(y)"),
    "two levels of a loop": (loop, "the ranks meet in a loop or branch", "pytensor.scan(levels"),
    "of the script": (
        lambda w: pt.sqrt(all_sum(x.sum())),
        "the ranks meet where the script says so",
        "all_sum(x.sum())",
    ),
    "a draw": (
        lambda w: x.sum() ** 2 + pt.random.normal(rng=w.rng, return_next_rng=True)[1],
        "each slice would repeat what is drawn once for all rows",
        "pt.random.normal",
    ),
    "an addend": (
        lambda w: (addend(pt.sqrt((x @ w).sum() ** 2)), "sum"),
        "a value of all rows is needed before slices can be added up",
        "addend(pt.sqrt",
    ),
}


# Refused for the same reason as a standard deviation.
LATER = ("rows after a sum", "gradient of a mean with weights")


@pytest.mark.parametrize("name", [slow(name) if name in LATER else name for name in REFUSED])
def test_what_needs_all_rows_at_once_is_refused_with_the_reason_and_the_line(module_ranks, w, name):
    w.rng = pytensor.shared(np.random.default_rng(1))
    make, reason, line = REFUSED[name]
    f = synk.function([x, y, weights], make(w), name="whole", on_unused_input="ignore")
    with pytest.raises(ValueError, match="num_slices=2, but 'whole' needs all rows at once: ") as refusal:
        f(X, Y, WEIGHTS, num_slices=2)
    place = str(refusal.value).partition(f": {reason} (")[2].partition("); pass num_slices=1")[0]
    assert place.startswith("test_parts.py:")
    assert line in place
    f(X, Y, WEIGHTS)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_weighted_step_in_slices_divides_the_gradient_of_the_sum(module_ranks, w, num_slices):
    error = x @ w - y
    slope = pytensor.grad((weights * error**2).sum(), w) / weights.sum()
    f = synk.function([x, y, weights], weighted(w), updates=[(w, w - 0.1 * slope)])
    start = w.get_value()
    residual = X @ start - Y
    loss = f(X, Y, WEIGHTS, num_slices=num_slices)
    np.testing.assert_allclose(loss, np.average(residual**2, weights=WEIGHTS))
    expected = start - 0.2 * X.T @ (WEIGHTS * residual) / WEIGHTS.sum()
    np.testing.assert_allclose(same_on_all(w, module_ranks), expected)


def test_a_collective_behind_another_is_told():
    assert "the ranks meet a second time" in cut([all_sum(all_sum(x.sum()))], [x]).refused


def test_a_graph_without_collectives_has_no_parts(w):
    exact = exact_definition(define("f", [x], [x.sum(), x, w], updates=[(w, w + 1)]))
    assert (exact.parts, exact.needs_all_rows) == ((), "")
