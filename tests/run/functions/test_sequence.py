"""Sequences: several functions and collectives as one command on every rank."""

from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from support.slow import slow

module_ranks = runs_of(3, later=[1])


def shared(value, name):
    return pytensor.shared(np.asarray(value, dtype="float64"), name=name)


class Training:
    """Gradient and update of a least-squares fit, around one gradient that is all-reduced."""

    def __init__(self):
        self.x, self.y = pt.matrix("x"), pt.vector("y")
        self.w = shared([1.0, -1.0], "w")
        self.g = shared([0.0, 0.0, 0.0], "g")
        loss = ((self.x @ self.w - self.y) ** 2).mean()
        flat = pt.concatenate([pt.grad(loss * synk.n_rows, self.w), [synk.n_rows]])
        self.gradient = synk.function([self.x, self.y], loss, updates=[(self.g, flat, "sum")])
        self.update = synk.function([], updates=[(self.w, self.w - 0.1 * self.g[:2] / self.g[2])])


def sample(*shape):
    return np.random.default_rng(7).normal(size=shape)


# --- items ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_partial", [slow(True, id="partial"), pytest.param(False, id="tuple")])
def test_training_in_one_command_gives_the_steps_of_numpy(module_ranks, as_partial):
    t = Training()
    reduce_all = partial(synk.all_reduce, t.g, op="sum") if as_partial else (synk.all_reduce, t.g, "sum")
    train = synk.sequence(t.gradient, reduce_all, t.update, name="train")
    assert train.name == "train"
    xs, ys = sample(13, 2), sample(13)
    in_data = train.build_inputs(xs, ys)
    w = t.w.get_value()
    for batch, num_slices in ((slice(None), 1), (slice(0, 5), 2), ([12, 0, 0], 1), (slice(0, 1), 3)):
        error = xs[batch] @ w - ys[batch]
        loss = train(*in_data, batch=batch, num_slices=num_slices)
        np.testing.assert_allclose(loss, (error**2).mean(), rtol=1e-10)
        w = w - 0.1 * 2 * xs[batch].T @ error / len(error)
        np.testing.assert_allclose(synk.gather(t.w), [w] * module_ranks, rtol=1e-10)


def test_any_collective_may_be_an_item(module_ranks):
    v, w, rows = shared(np.ones(2), "v"), shared(np.zeros(2), "w"), shared(np.zeros(0), "rows")
    look = synk.function([], (v.sum(), "sum"))
    every = synk.sequence(
        (synk.broadcast, v, np.array([1.0, 2.0])),
        (synk.set_value, 0, w, [5.0, 5.0]),
        partial(synk.broadcast, w),
        (synk.all_reduce, v, "sum"),
        partial(synk.reduce, shared_vars=w, op="min"),
        look,
        (synk.all_gather, v),
        (synk.scatter, rows, np.arange(5.0)),
    )
    assert every() == 3 * module_ranks**2
    np.testing.assert_array_equal(synk.gather(rows, nd_up=0), np.arange(5.0))
    assert synk.get_lengths(v) == [2 * module_ranks] * module_ranks
    assert synk.gather(w).tolist() == [[5, 5]] * module_ranks


# --- what it is and returns -------------------------------------------------------------------------


def test_inputs_are_those_of_the_functions_each_once():
    x, y, w = pt.vector("x"), pt.vector("y"), pt.scalar("w")
    f = synk.function([x], ((x * w).sum(), "sum"), [w], name="f")
    g = synk.function([y, x], [((x + y + w).sum(), "sum"), (y.max(), "max")], [w], name="g")
    both = synk.sequence(f, g)
    assert both.inputs == (x, w, y)
    assert both.name == "f + g"
    assert both.output_modes == ["sum", "sum", "max"]
    ones, twos = np.ones(4), 2 * np.ones(4)
    assert both(ones, 3.0, twos) == both(y=twos, w=3.0, x=ones) == [12, 24, 2]
    assert both(ones, 3.0, twos, output_subset=[2, 0]) == [2, 12]
    assert both(ones, 3.0, twos, batch=[0, 0], num_slices=2) == [6, 12, 2]
    assert both.as_pytensor(ones, 3.0, twos) == [12, 24, 2]
    with pytest.raises(TypeError, match="misses input 'y'"):
        both(ones, 3.0)


def test_a_single_result_stays_single_and_none_stays_none():
    v = shared(1.0, "v")
    single, listed = synk.function([], v * 1), synk.function([], [v * 1])
    nothing = synk.function([], updates=[(v, v * 1)], name="nothing")
    assert synk.sequence(nothing, single)() == 1
    assert synk.sequence(nothing, listed)() == [1]
    assert synk.sequence(single, listed)() == [1, 1]
    assert synk.sequence(nothing, nothing)() is None
    assert synk.sequence(nothing, nothing).update_modes == [None, None]


def test_options_go_to_the_functions_that_can_use_them(module_ranks):
    x = pt.vector("x")
    s = shared(np.ones(4), "s")
    scattered = synk.function([x], (x.sum(), "sum"))
    sliced = synk.function([], (s.sum(), "sum"), sliceable_shareds=[s])
    plain = synk.function([], (s.sum(), "sum"))
    every = synk.sequence(scattered, sliced, plain)
    results = every(np.ones(9), batch=5, batch_s=slice(0, 3), num_slices=2)
    assert results == [5, 3 * module_ranks, 4 * module_ranks]
    with pytest.raises(TypeError, match="batch selects"):
        synk.sequence(sliced, plain)(batch=1)
    with pytest.raises(TypeError, match="batch_s selects"):
        synk.sequence(scattered, plain)(np.ones(2), batch_s=[0])
    with pytest.raises(ValueError, match="nothing to slice"):
        synk.sequence(plain, plain)(num_slices=2)


# --- values that change on the way ----------------------------------------------------------------------


def test_rows_that_an_item_set_are_noticed_by_later_calls(module_ranks):
    s = shared(np.zeros(0), "s")
    total = synk.function([], (s.sum(), "sum"), sliceable_shareds=[s])
    x = pt.vector("x")
    replace = synk.function([x], updates=[(s, x, "gather")])
    synk.scatter(s, np.ones(module_ranks))
    synk.sequence(replace, total)(np.ones(12))
    assert total() == 12


def test_data_is_read_when_the_sequence_runs(module_ranks):
    v, data = shared([0.0, 0.0], "v"), synk.data(np.ones(2))
    give = synk.sequence((synk.broadcast, v, data), synk.function([], (v.sum(), "sum")))
    for value in (3, 4):
        data[...] = value
        assert give() == 2 * value * module_ranks


# --- what is refused -----------------------------------------------------------------------------------


def test_wrong_items_are_refused_when_the_sequence_is_made():
    v, count = shared(1.0, "v"), pytensor.shared(0, name="count")
    f = synk.function([], v * 1)
    with pytest.raises(TypeError, match="needs functions and collectives, got none"):
        synk.sequence()
    wrong = (
        synk.all_reduce,
        lambda: 1,
        partial(print, 1),
        3,
        None,
        (),
        (v, "sum"),
        "f",
        (synk.close,),
        synk.gather,
    )
    for item in wrong:
        with pytest.raises(TypeError, match="takes functions and collectives as functools"):
            synk.sequence(f, item)
    with pytest.raises(TypeError, match="'both' is a sequence itself"):
        synk.sequence(f, synk.sequence(f, name="both"))
    # What is wrong with a collective is said where it was written.
    with pytest.raises(ValueError, match="'mean' is not a reduce operation"):
        synk.sequence((synk.all_reduce, v, "mean"))
    with pytest.raises(TypeError, match="'count' has dtype int64"):
        synk.sequence(partial(synk.all_reduce, count))
    with pytest.raises(IndexError, match="rank=70"):
        synk.sequence((synk.get_value, 70, v))
    with pytest.raises(TypeError, match=r"argument|positional"):
        synk.sequence((synk.all_reduce,))


def test_a_failing_item_ends_the_command_and_the_run_goes_on(module_ranks):
    x = pt.vector("x")
    count = pytensor.shared(0, name="count")
    fail = synk.function([x], (x[5], "sum"))
    add = synk.function([], updates=[(count, count + 1)])
    both = synk.sequence(add, fail, (synk.all_reduce, count, "max"), add)
    with pytest.raises(IndexError):
        both(np.ones(4 * module_ranks))
    assert synk.gather(count).tolist() == [1] * module_ranks
    assert both(np.ones(6 * module_ranks)) == module_ranks
    assert synk.gather(count).tolist() == [3] * module_ranks


def test_wrong_calls_are_refused_before_any_item_ran(module_ranks):
    x = pt.vector("x")
    count = pytensor.shared(0, name="count")
    add = synk.function([], updates=[(count, count + 1)])
    both = synk.sequence(add, synk.function([x], (x.sum(), "sum")))
    for wrong in (3.0, np.ones((2, 2))):
        with pytest.raises(TypeError, match="'x'"):
            both(wrong)
    with pytest.raises(IndexError, match="batch=9"):
        both(np.ones(3), batch=9)
    assert synk.gather(count).tolist() == [0] * module_ranks


def test_a_sequence_keeps_its_functions_and_variables_alive(module_ranks):
    def make():
        v = shared(1.0, "v")
        return synk.sequence(synk.function([], (v * 2, "max")), (synk.all_reduce, v, "sum"))

    run = make()
    synk.distribute()
    assert np.ravel(run()).tolist() == [2]
    assert np.ravel(run()).tolist() == [2 * module_ranks]


def test_a_random_state_is_broadcast_by_itself():
    state = pytensor.shared(np.random.default_rng(0), name="state")
    with pytest.raises(TypeError, match="random state 'state' cannot be broadcast in a sequence"):
        synk.sequence((synk.broadcast, state))
    with pytest.raises(TypeError, match="random state 'state' cannot be broadcast in a sequence"):
        synk.sequence(partial(synk.broadcast, shared_vars=state))


def test_an_output_subset_counts_what_collectives_return(module_ranks):
    v, x = shared(1.0, "v"), pt.vector("x")
    first, last = synk.function([x], [(x.sum(), "sum")]), synk.function([x], [(x.max(), "max")])
    both = synk.sequence(first, (synk.gather, v), last)
    assert both(np.arange(4.0), output_subset=[2, 0]) == [3, 6]
    with pytest.raises(ValueError, match="names output 3, there are 3"):
        both(np.arange(4.0), output_subset=[3])


def test_only_collectives_that_return_something_count_as_outputs(module_ranks):
    v = shared(2.0, "v")
    both = synk.sequence(synk.function([], v * 1), (synk.all_reduce, v, "max"), (synk.gather, v))
    assert both(output_subset=[1]).tolist() == [2] * module_ranks
    with pytest.raises(ValueError, match="names output 2, there are 2"):
        both(output_subset=[2])
    nothing = synk.function([], updates=[(v, v * 1)])
    assert synk.sequence(nothing, (synk.get_shapes, v))() == [[()] * module_ranks]
