"""Sums over all ranks in the middle of a graph: the statistics of the whole batch on every rank."""

import itertools

import numpy as np
import pytensor
import pytensor.graph.replace
import pytensor.tensor as pt
import pytest

import synk
from synk.compile import array_mode
from synk.ops import batch_norm
from synk.ops.all_ranks import AllSum, all_sum


@pytest.fixture(scope="module", params=[1, 3], ids=["1 rank", "3 ranks"], autouse=True)
def module_ranks(request):
    """One run for the whole module: the number of ranks."""
    yield synk.fork(request.param)
    synk.close()


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


@pytest.mark.parametrize("n", [1, 2, 3, 8, 100])
def test_statistics_and_gradients_are_those_of_one_process(both, n):
    on_ranks, alone = both
    for got, expected in zip(on_ranks(rows(n)), alone(rows(n)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_ranks_without_rows_for_a_slice_take_part(module_ranks):
    x = pt.matrix("x")
    total = synk.function([x], [(all_sum(x.sum(0)), None)])
    values = rows(module_ranks + 1)  # the last slice has a row on rank 0 only
    n_slices = 2
    (got,) = total(values, num_slices=n_slices)
    np.testing.assert_allclose(got, values[1] if module_ranks > 1 else values[-1])


def test_updates_of_ranks_without_rows_stay_as_they_were(module_ranks):
    x, seen = pt.matrix("x"), pytensor.shared(np.zeros(3), name="seen")
    remember = synk.function([x], updates=[(seen, all_sum(x.sum(0)))])
    remember(rows(1))
    np.testing.assert_allclose(synk.gather(seen)[0], rows(1)[0])


def test_all_sum_as_pytensor_is_that_of_one_process(both):
    on_ranks, alone = both
    for got, expected in zip(on_ranks.as_pytensor(rows(5)), alone(rows(5)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", [array_mode(), "FAST_COMPILE"], ids=["array_mode", "FAST_COMPILE"])
def test_sums_wait_for_each_other_in_the_order_they_were_written(mode):
    x = pt.matrix("x")
    first, second = all_sum(x.sum(0)), all_sum(x.sum(1))
    for outputs in ([first, second], [second, first]):
        graph = pytensor.function([x], outputs, mode=mode).maker.fgraph
        numbers = [node.op.number for node in graph.toposort() if isinstance(node.op, AllSum)]
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
    assert sum(isinstance(node.op, AllSum) for node in graph.apply_nodes) == 2


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


def test_debug_mode_finds_nothing_wrong_where_some_ranks_have_no_rows():
    x, loss, gradient = loss_and_gradient(all_sum)
    checked = synk.function([x], [loss, (gradient, "sum")], mode="debug")
    plain = synk.function([x], [loss, (gradient, "sum")])
    for n, n_slices in itertools.product((1, 3, 8), (1, 2)):
        results = zip(checked(rows(n), num_slices=n_slices), plain(rows(n), num_slices=n_slices), strict=True)
        for got, expected in results:
            np.testing.assert_allclose(got, expected, err_msg=f"{n} rows in {n_slices} slices")


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
