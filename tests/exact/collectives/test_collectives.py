"""Collectives in the middle of a graph: their values and gradients, with ranks that have no rows too."""

import itertools

import numpy as np
import pytensor
import pytensor.graph.replace
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from support.slow import slow
from synk.compile import array_mode
from synk.compile.compat import optional_class
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.run_values import ranks
from synk.ops import all_gather, all_reduce, all_sum, batch_norm, broadcast, reduce_scatter

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


module_ranks = runs_of(3, later=[1])
COMBINE = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}


def parts(values, n_ranks, num_slices=1, number=0):
    """Return the rows of each rank that has any in one of the slices."""
    of_slices = [
        [part for part in np.array_split(one, num_slices) if len(part)]
        for one in np.array_split(values, n_ranks)
    ]
    return [of_rank[number] for of_rank in of_slices if number < len(of_rank)]


def gathered(x, outputs):
    """Return a function of rows whose outputs have an axis in front, for the ranks that have rows."""
    return synk.function([x], [(output[None], "gather") for output in outputs])


def test_all_reduce_combines_the_values_of_the_ranks_that_have_rows(module_ranks):
    x = pt.matrix("x")
    on_ranks = gathered(x, [all_reduce(x.sum(0), op) for op in COMBINE])
    for n in (1, 2, 3, 8):
        of_ranks = [part.sum(0) for part in parts(rows(n), module_ranks)]
        for got, (op, combine) in zip(on_ranks(rows(n)), COMBINE.items(), strict=True):
            assert got.shape == (len(of_ranks), 3)
            np.testing.assert_allclose(got, [combine(of_ranks, axis=0)] * len(of_ranks), err_msg=op)


def test_all_reduce_of_booleans_and_of_whole_numbers(module_ranks):
    x = pt.matrix("x")
    bring = [(x > 1).all(0), x.sum(0).astype("int8")]
    on_ranks = gathered(x, [all_reduce(one, op) for op in ("min", "max") for one in bring])
    for n in (1, 2, 8):
        of_ranks = parts(rows(n), module_ranks)
        all_above = np.array([(part > 1).all(0) for part in of_ranks])
        totals = np.array([part.sum(0) for part in of_ranks]).astype("int8")
        expected = [combine(one, axis=0) for combine in (np.min, np.max) for one in (all_above, totals)]
        for got, one in zip(on_ranks(rows(n)), expected, strict=True):
            assert got.dtype == one.dtype
            np.testing.assert_array_equal(got, [one] * len(of_ranks))


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_several_arrays_are_reduced_by_one_collective(module_ranks, op):
    x = pt.matrix("x")
    matrix, number, vector = AllReduceOp(op)(x.T @ x, x.sum(), x.sum(0), ranks)
    function = gathered(x, [matrix, number, vector])
    for n in (1, 2, 8):
        of_ranks = parts(rows(n), module_ranks)
        for got, bring in zip(
            function(rows(n)),
            [lambda part: part.T @ part, lambda part: part.sum(), lambda part: part.sum(0)],
            strict=True,
        ):
            expected = COMBINE[op]([bring(part) for part in of_ranks], axis=0)
            np.testing.assert_allclose(got, [expected] * len(of_ranks))
    ops = function.profile(rows(8), n_calls=1).ops
    # One rank has nobody to meet.
    assert sum(row["nodes"] for row in ops if row["op"] == "AllReduceOp") == (module_ranks > 1)


def test_an_average_of_large_numbers_is_finite(module_ranks):
    x = pt.matrix("x")
    (got,) = gathered(x, [all_reduce(x[0], "avg")])(np.full((module_ranks, 2), 1.5e308))
    np.testing.assert_array_equal(got, np.full((module_ranks, 2), 1.5e308))


def test_all_gather_joins_what_the_ranks_have_in_rank_order(module_ranks):
    x = pt.matrix("x")
    on_ranks = gathered(x, [all_gather(x), all_gather(x.T, 1), all_gather(x.T * 2, -1)])
    for n in (1, 2, 3, 8):
        for got, expected in zip(on_ranks(rows(n)), (rows(n), rows(n).T, rows(n).T * 2), strict=True):
            np.testing.assert_array_equal(got, [expected] * min(n, module_ranks))


def test_a_rank_without_rows_adds_nothing_to_what_is_gathered_along_any_axis(module_ranks):
    x = pt.matrix("x")
    beside, of_each = all_gather(x, 1), all_gather(x.sum(0, keepdims=True))
    got = gathered(x, [beside, of_each])(rows(1))
    for values in got:
        np.testing.assert_array_equal(values, rows(1)[None])


def test_reduce_scatter_gives_each_rank_its_part(module_ranks):
    x = pt.matrix("x")
    on_ranks = synk.function([x], [(reduce_scatter(x.sum(0), op), "gather") for op in COMBINE])
    for n in (1, 2, 3, 8):
        of_ranks = [part.sum(0) for part in parts(rows(n), module_ranks)]
        for got, (op, combine) in zip(on_ranks(rows(n)), COMBINE.items(), strict=True):
            whole = np.array_split(combine(of_ranks, axis=0), module_ranks)
            np.testing.assert_allclose(got, np.concatenate(whole[: len(of_ranks)]), err_msg=op)


def test_broadcast_gives_all_what_the_root_has(module_ranks):
    x = pt.matrix("x")
    on_ranks = gathered(x, [broadcast(x, root) for root in range(module_ranks)])
    for got, expected in zip(on_ranks(rows(10)), parts(rows(10), module_ranks), strict=True):
        np.testing.assert_array_equal(got, [expected] * module_ranks)


def test_a_root_that_is_no_rank_is_refused(module_ranks):
    x = pt.matrix("x")
    root = max(3, module_ranks)
    to_all = synk.function([x], (broadcast(x, root), None))
    if module_ranks == 1:
        np.testing.assert_array_equal(to_all(rows(2)), rows(2))
        return
    with pytest.raises(ValueError, match=f"root={root} is no rank of this run, which has {module_ranks}"):
        to_all(rows(8))


def test_every_slice_meets_the_same_slice_of_the_other_ranks(module_ranks):
    x = pt.matrix("x")
    outputs = [all_reduce(x.sum(0), op) for op in COMBINE] + [all_gather(x).sum(0)]
    on_ranks = synk.function([x], [(output, "sum") for output in outputs])
    for n, num_slices in itertools.product((1, 2, 5, 7), (2, 3)):
        expected = np.zeros((len(outputs), 3))
        for number in range(num_slices):
            present = parts(rows(n), module_ranks, num_slices, number)
            of_ranks = [part.sum(0) for part in present]
            if of_ranks:
                values = [combine(of_ranks, axis=0) for combine in COMBINE.values()]
                expected += len(of_ranks) * np.array([*values, np.sum(of_ranks, axis=0)])
        np.testing.assert_allclose(on_ranks(rows(n), num_slices=num_slices), expected)


# --- gradients -------------------------------------------------------------------------------------

COLLECTIVES = {
    **{op: lambda x, op=op: all_reduce(x.sum(0), op) for op in COMBINE},
    "gather rows": all_gather,
    "gather columns": lambda x: all_gather(x.T, 1),
    "gather sums": lambda x: all_gather(x.sum(0)),
    **{f"scatter {op}": lambda x, op=op: reduce_scatter(x.sum(0), op) for op in COMBINE if op != "min"},
    "first": lambda x: broadcast(x, 0).sum(0),
    "last": lambda x: broadcast(x.sum(0), synk.n_ranks() - 1),
    "twice": lambda x: all_reduce(all_gather(x) * x.sum(), "max"),
    "together": lambda x: pt.concatenate(AllReduceOp("prod")(x.sum(0), x.mean(0), ranks)),
    "one of two": lambda x: AllReduceOp("sum")(x.sum(0), x.mean(0), ranks)[1],
}


def losses(collective):
    """Return rows, a parameter, and a loss that weighs each element, on each rank in another way."""
    x, w = pt.matrix("x"), pt.vector("w")
    y = collective(pt.tanh(x) * w).ravel()
    return x, w, (pt.sqr(y) * pt.cos(pt.arange(y.shape[0]))).sum() * pt.sin(x.sum())


def check_gradients(x, w, loss, calls):
    """Hold gradients for each row, and for the parameter, to differences of the sum of all ranks' losses.

    Each of ``calls`` is a number of rows, and one of slices.
    """
    slopes = pt.grad(loss, [x, w], disconnected_inputs="ignore")
    gradients = synk.function([x], [(slopes[0], "gather"), (slopes[1], "sum")], bcast_inputs=[w])
    total = synk.function([x], (loss, "sum"), bcast_inputs=[w])
    for n, num_slices in calls:
        values, parameter = rows(n), np.array([0.7, -1.2, 1.1])
        of_call = gradients(values, parameter, num_slices=num_slices)
        for got, varied in zip(of_call, (values, parameter), strict=True):
            expected = np.zeros(varied.shape)
            for at in np.ndindex(varied.shape):
                for sign in (1, -1):
                    before = varied[at]
                    varied[at] += sign * 1e-5
                    expected[at] += sign * total(values, parameter, num_slices=num_slices) / 2e-5
                    varied[at] = before
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


# One of each kind of collective; each of the others compiles two functions more on each rank.
OFTEN = ("sum", "gather rows", "scatter avg", "first")


@pytest.mark.parametrize("name", [name if name in OFTEN else slow(name) for name in COLLECTIVES])
def test_gradients_are_those_of_the_sum_of_all_losses(module_ranks, name):
    # A root without rows broadcasts what it computes from a stand-in, which no difference can vary.
    calls = [(4, 1)] if name == "last" else [(1, 1), (4, 1), (module_ranks + 1, 2)]
    check_gradients(*losses(COLLECTIVES[name]), calls)


def standardised(x, total):
    """Standardise rows by the statistics of all of them, which ``total`` adds up."""
    count = total(x.shape[0].astype("float64"))
    mean = total(x.sum(0)) / count
    variance = total(((x - mean) ** 2).sum(0)) / count
    return (x - mean) / pt.sqrt(variance + 0.1)


def loss_and_gradient(total):
    x, w = pt.matrix("x"), pytensor.shared(np.array([1.0, -2.0, 0.5]), name="w")
    loss = (standardised(x * w, total) ** 3 * [1.0, 2.0, 3.0]).mean()
    return x, loss, pt.grad(loss * synk.n_rows, w)


@pytest.fixture(scope="module")
def both(module_ranks):
    """The function on all ranks, and that of one process without any of it."""
    x, loss, gradient = loss_and_gradient(all_sum)
    on_ranks = synk.function([x], [loss, (gradient, "sum")])
    x, loss, gradient = loss_and_gradient(lambda value: value)
    alone = pytensor.function([x], [loss, gradient * x.shape[0]], mode=array_mode())
    return on_ranks, alone


def rows(n, seed=3):
    return np.random.default_rng(seed).gamma(2.0, size=(n, 3))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 8, 100])
def test_statistics_and_gradients_are_those_of_one_process(both, n):
    on_ranks, alone = both
    for got, expected in zip(on_ranks(rows(n)), alone(rows(n)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_updates_of_ranks_without_rows_stay_as_they_were(module_ranks):
    x, seen = pt.matrix("x"), pytensor.shared(np.zeros(3), name="seen")
    remember = synk.function([x], updates=[(seen, all_sum(x.sum(0)))])
    remember(rows(1))
    np.testing.assert_allclose(synk.gather(seen)[0], rows(1)[0])


def test_all_sum_as_pytensor_is_that_of_one_process(both):
    on_ranks, alone = both
    for got, expected in zip(on_ranks.as_pytensor(rows(5)), alone(rows(5)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_a_loop_with_collectives_inside_has_its_turn_among_the_others(module_ranks):
    x = pt.matrix("x")
    first = all_sum(x.sum(0))
    loop = pytensor.scan(
        lambda state: all_reduce(state, "max") / 2, outputs_info=[x.sum(0)], n_steps=3, return_updates=False
    )[-1]
    last = all_reduce(x.sum(0), "min")
    function = synk.function([x], [(output, None) for output in (last, loop, first)])
    for n in (1, 2, 8):
        of_ranks = [part.sum(0) for part in parts(rows(n), module_ranks)]
        expected = np.min(of_ranks, axis=0), np.max(of_ranks, axis=0) / 8, np.sum(of_ranks, axis=0)
        for got, value in zip(function(rows(n)), expected, strict=True):
            np.testing.assert_allclose(got, value)


def test_in_a_branch_that_all_ranks_take_a_collective_has_its_turn(module_ranks):
    x = pt.matrix("x")
    is_positive = all_sum(x.sum()) > 0
    chosen = ifelse(is_positive, all_reduce(x.sum(0), "max"), all_gather(x).sum(0) * 2)
    function = synk.function([x], [(chosen, None), (all_sum(x.sum(0)), None)])
    for n, sign in itertools.product((1, 2, 8), (1, -1)):
        values = sign * rows(n)
        greatest = np.max([part.sum(0) for part in parts(values, module_ranks)], axis=0)
        for got, value in zip(
            function(values), (greatest if sign > 0 else 2 * values.sum(0), values.sum(0)), strict=True
        ):
            np.testing.assert_allclose(got, value)


def batch_normalised(all_ranks):
    """The loss of a batch norm, the gradients of its parameters, and what its statistics become."""
    x = pt.tensor4("x")
    gamma, beta = (
        pytensor.shared(np.array(v), name=n) for n, v in (("gamma", [1.0, 2.0]), ("beta", [0.5, -1.0]))
    )
    running = [pytensor.shared(np.zeros(2), name="mean"), pytensor.shared(np.ones(2), name="var")]
    y, updates = batch_norm(x, gamma, beta, *running, train=True, all_ranks=all_ranks)
    loss = (y**3 + pt.tanh(y)).mean()
    gradients = pt.grad(loss * synk.n_rows, [gamma, beta])
    return x, loss, gradients, [new for _, new in updates]


def test_batch_norm_of_all_ranks_is_that_of_one_process(module_ranks):
    x, loss, gradients, statistics = batch_normalised(all_ranks=True)
    on_ranks = synk.function([x], [loss, *((g, "sum") for g in gradients), *statistics])
    x, loss, gradients, statistics = batch_normalised(all_ranks=False)
    alone = pytensor.function(
        [x], [loss, *(g * x.shape[0] for g in gradients), *statistics], mode=array_mode()
    )
    for n in (1, 2, 5, 12):
        values = np.random.default_rng(n).normal(3.0, 2.0, size=(n, 2, 3, 3))
        for got, expected in zip(on_ranks(values), alone(values), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9, err_msg=f"{n} rows")


@pytest.mark.slow
def test_debug_mode_finds_nothing_wrong_where_some_ranks_have_no_rows():
    x, loss, gradient = loss_and_gradient(all_sum)
    checked = synk.function([x], [(loss, "avg"), (gradient, "sum")], mode="debug")
    plain = synk.function([x], [(loss, "avg"), (gradient, "sum")])
    for n, n_slices in itertools.product((1, 3, 8), (1, 2)):
        results = zip(checked(rows(n), num_slices=n_slices), plain(rows(n), num_slices=n_slices), strict=True)
        for got, expected in results:
            np.testing.assert_allclose(got, expected, err_msg=f"{n} rows in {n_slices} slices")


@pytest.mark.slow
def test_debug_mode_finds_nothing_wrong_in_any_collective(module_ranks):
    x, w = pt.matrix("x"), pt.vector("w")
    names = ("prod", "max", "avg", "gather columns", "scatter avg", "last", "together")
    results = [COLLECTIVES[name](pt.tanh(x) * w).sum() for name in names]
    outputs = [(one, "sum") for y in results for one in (y, pt.grad(pt.sqr(y), w))]
    checked, plain = (synk.function([x], outputs, bcast_inputs=[w], mode=mode) for mode in ("debug", None))
    for n in (1, 8):
        arguments = rows(n), np.array([0.7, -1.2, 1.1])
        for got, expected in zip(checked(*arguments), plain(*arguments), strict=True):
            np.testing.assert_allclose(got, expected)


@pytest.mark.slow
def test_second_derivatives_are_those_of_the_sum_of_all_slopes(module_ranks):
    for collective in (COLLECTIVES["gather rows"], COLLECTIVES["scatter sum"], COLLECTIVES["prod"]):
        x, w, loss = losses(collective)
        check_gradients(x, w, (pt.grad(loss, w) * [1.0, -0.5, 2.0]).sum(), [(4, 1)])


def test_a_product_has_its_gradient_where_elements_are_zero(module_ranks):
    x = pt.matrix("x")
    slope = pt.grad((all_reduce(x.sum(0), "prod") * [1.0, 2.0, 3.0]).sum(), x)
    values = np.array([[0.0, 0.0, 2.0], [3.0, 0.0, 5.0], [7.0, 11.0, 0.0]])[:module_ranks]
    others = np.array([np.prod(np.delete(values, rank, axis=0), axis=0) for rank in range(len(values))])
    got = synk.function([x], (slope, "gather"))(values)
    np.testing.assert_array_equal(got, others * [1, 2, 3] * len(values))  # the sum of all ranks' losses


@pytest.mark.slow
def test_sums_in_the_steps_of_a_scan_have_gradients(module_ranks):
    def looped(total):
        x, w = pt.matrix("x"), pytensor.shared(np.array([1.0, -2.0, 0.5]), name="w")
        states = pytensor.scan(
            lambda state, w: state * w + total(state.sum(0)),
            outputs_info=[x],
            non_sequences=[w],
            n_steps=3,
            return_updates=False,
        )
        loss = pt.tanh(states[-1]).mean()
        return x, loss, pt.grad(loss * synk.n_rows, w)

    x, loss, gradient = looped(all_sum)
    on_ranks = synk.function([x], [loss, (gradient, "sum")])
    x, loss, gradient = looped(lambda value: value)
    alone = pytensor.function([x], [loss, gradient * x.shape[0]], mode=array_mode())
    for n in (1, 2, 5):
        for got, expected in zip(on_ranks(rows(n)), alone(rows(n)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
