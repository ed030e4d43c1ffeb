"""Shared variables: when values travel, who changes them, and whose random numbers a rank draws."""

import gc

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.basic import Container

import synk
from support.slow import slow

N_RANKS = 3


@pytest.fixture
def run(ranks):
    return ranks(N_RANKS)


def shared(value, name="v"):
    return pytensor.shared(np.asarray(value, dtype="float64"), name=name)


def look_at(variable):
    """Return a function that adds up the values of all ranks."""
    return synk.function([], (variable.sum(), "sum"))


# --- when values travel ------------------------------------------------------------------------------


def test_values_travel_with_the_first_function_that_uses_them(run):
    v = shared(1.0)
    f = look_at(v)
    v.set_value(5.0)  # before the first call: nobody has a value yet, so no warning
    assert f() == 5 * N_RANKS


def test_variables_may_be_made_before_the_fork_after_it_and_after_calls(ranks):
    before = shared(1.0, "before")
    ranks(N_RANKS)
    after = shared(2.0, "after")
    assert synk.function([], (before + after, "sum"))() == 3 * N_RANKS
    late = shared(4.0, "late")
    add = synk.function([], (before + late, "sum"), updates=[(late, late + before)])
    assert [add(), add()] == [5 * N_RANKS, 6 * N_RANKS]
    assert synk.function([], (before + after + late, "sum"))() == 9 * N_RANKS


@pytest.mark.parametrize("dtype", ["bool", slow("int8"), slow("float16"), "float32", slow("complex128")])
def test_values_of_every_dtype_and_size_travel(run, dtype):
    for shape in ((), (3,), (200, 1000), (2, 0)):
        value = np.ones(shape, dtype=dtype)
        v = pytensor.shared(value, name="v")
        f = synk.function([], (v, "gather"))
        result = f()
        assert result.dtype == dtype
        assert result.size == N_RANKS * value.size
        assert (result == 1).all()


def test_ranks_may_write_where_values_arrived(run):
    for size in (3, 100_000):  # small ones come in the message, large ones beside it
        v = shared(np.zeros(size))
        add = synk.function([], updates=[(v, pt.inc_subtensor(v[:2], 1.0))])
        add()
        add()
        assert look_at(v)() == 4 * N_RANKS


def test_variables_that_share_a_name_stay_apart(run):
    one, two = shared(1.0, "same"), shared(2.0, "same")
    assert synk.function([], [(one * 1, "sum"), (two * 1, "sum")])() == [N_RANKS, 2 * N_RANKS]
    synk.broadcast(one, 5.0)
    assert synk.function([], (two * 1, "sum"))() == 2 * N_RANKS


# --- set_value on the master ---------------------------------------------------------------------------


def test_set_value_changes_the_master_only_and_warns_once_per_variable(run):
    v, w = shared(1.0, "rate"), shared(1.0, "other")
    f = synk.function([], [(v * 1, "gather"), (w * 1, "gather")])
    f()
    with pytest.warns(synk.SynkWarning, match=r"'rate' changed rank 0 only.*synk\.broadcast") as caught:
        v.set_value(7.0)
    assert [warning.filename for warning in caught] == [__file__]
    v.set_value(8.0)
    assert f()[0].tolist() == [8, 1, 1]
    with pytest.warns(synk.SynkWarning, match="'other'"):
        w.set_value(np.float64(3), borrow=True)
    assert f()[1].tolist() == [3, 1, 1]
    assert v.get_value() == 8


def test_what_takes_a_variable_as_equal_is_refused_from_set_value_to_broadcast(run):
    rate, v = shared(0.1, "rate"), shared(1.0)
    step = synk.function([], updates=[(v, v - rate)], name="step")
    step()
    step()
    with pytest.warns(synk.SynkWarning, match="'rate' changed rank 0 only"):
        rate.set_value(0.5)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'step' takes 'rate' as equal.*set_value.*broadcast\(rate\)"):
            step()
        rate.set_value(0.2)  # not told again
    synk.broadcast(rate)
    step()
    np.testing.assert_allclose(synk.gather(v), [0.6] * N_RANKS)


def test_reading_updates_and_collectives_do_not_warn(run):
    v = shared(1.0)
    synk.function([], updates=[(v, v + 1)])()
    synk.broadcast(v, 3.0)
    synk.all_reduce(v, "sum")
    synk.reduce(v, "sum")
    synk.set_value(0, v, 1.0)
    synk.broadcast(v)
    assert look_at(v)() == N_RANKS
    assert v.get_value() == v.get_value(borrow=True) == 1


def test_after_close_variables_are_plain_again(run):
    v, state = shared(1.0), pytensor.shared(np.random.default_rng(1), name="state")
    draw = pt.random.uniform(rng=state, return_next_rng=True)
    f = synk.function([], (v + draw[1], "max"), updates=[(v, v + 1), (state, draw[0])])
    f()
    synk.close()
    assert type(v.container) is type(state.container) is Container
    assert v.get_value() == 2
    v.set_value(5.0)
    plain = pytensor.function([], v * 2, updates=[(v, v + 1)], mode="FAST_COMPILE")
    assert plain() == 10
    assert v.get_value() == 6
    state.set_value(np.random.default_rng(2))


def test_a_new_run_takes_the_masters_values(run):
    v = shared(1.0)
    add = synk.function([], updates=[(v, v + 1)])
    add()
    synk.set_value(1, v, 100.0)
    synk.close()
    synk.fork(2)
    v.set_value(v.get_value() + 1)  # plain until it travels again
    assert look_at(v)() == 6
    with pytest.warns(synk.SynkWarning, match="'v'"):
        v.set_value(0.0)


def test_plain_functions_of_the_master_go_on_working(run):
    v = shared(1.0)
    plain = pytensor.function([], v * 2, mode="FAST_COMPILE")
    f = synk.function([], (v * 1, "gather"), updates=[(v, v + 1)])
    f()
    assert plain() == 4
    assert v.get_value() == 2
    assert pytensor.function([], v * 3, mode="FAST_COMPILE")() == 6


# --- random streams -------------------------------------------------------------------------------------

# The first of them jump, and the last one cannot.
GENERATORS = [
    np.random.PCG64,
    *map(slow, [np.random.PCG64DXSM, np.random.MT19937, np.random.Philox]),
    np.random.SFC64,
]


def draws(make):
    """Return the numbers that each rank draws in two calls, by rank."""
    state = pytensor.shared(np.random.Generator(make(5)), name="state")
    following, noise = pt.random.uniform(rng=state, size=(4,), return_next_rng=True)
    f = synk.function([], (noise, "gather"), updates=[(state, following)])
    return np.concatenate([f().reshape(N_RANKS, 4) for _ in range(2)], axis=1)


@pytest.mark.parametrize("make", GENERATORS, ids=lambda make: make.__name__)
def test_each_rank_has_a_stream_of_its_own_and_rank_0_that_of_pytensor(ranks, make):
    ranks(N_RANKS)
    first = draws(make)
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(first[0], np.random.Generator(make(5)).random(8))
    synk.close()
    ranks(N_RANKS)
    np.testing.assert_array_equal(draws(make), first)


@pytest.mark.slow
def test_streams_do_not_depend_on_what_ran_before(run):
    state = pytensor.shared(np.random.default_rng(5), name="state")
    noise = pt.random.uniform(rng=state, size=(4,), return_next_rng=True)[1]
    f = synk.function([], (noise, "gather"))
    expected = f()
    np.testing.assert_array_equal(f(), expected)  # without an update the state stays
    again = pytensor.shared(np.random.default_rng(5), name="again")
    noise = pt.random.uniform(rng=again, size=(4,), return_next_rng=True)[1]
    np.testing.assert_array_equal(synk.function([], (noise, "gather"))(), expected)


def test_random_states_warn_too_and_broadcast_gives_streams_of_the_new_state(run):
    state = pytensor.shared(np.random.default_rng(5), name="state")
    noise = pt.random.uniform(rng=state, size=(2,), return_next_rng=True)[1]
    f = synk.function([], (noise, "gather"))
    old = f()
    with pytest.warns(synk.SynkWarning, match="'state'"):
        state.set_value(np.random.default_rng(6))
    changed = f()
    np.testing.assert_array_equal(changed[:2], np.random.default_rng(6).random(2))
    np.testing.assert_array_equal(changed[2:], old[2:])
    synk.broadcast(state)
    streams = [np.random.default_rng(6).bit_generator.jumped(rank) for rank in range(1, N_RANKS)]
    expected = [np.random.Generator(bits).random(2) for bits in (np.random.PCG64(6), *streams)]
    np.testing.assert_array_equal(f(), np.concatenate(expected))


# --- what is dropped is forgotten: see survival/test_soak.py, too ----------------------------------------


def test_a_variable_lives_as_long_as_a_function_uses_it(run):
    def make():
        v = shared(2.0)
        return synk.function([], (v * 1, "sum"), updates=[(v, v * 2)])

    f = make()
    gc.collect()
    assert [f(), f(), f()] == [2 * N_RANKS, 4 * N_RANKS, 8 * N_RANKS]


@pytest.mark.slow
def test_dropped_functions_never_called_leave_no_trace(run):
    for _ in range(5):
        look_at(shared(1.0))
    gc.collect()
    synk.distribute()
    v = shared(1.0)
    assert look_at(v)() == N_RANKS
