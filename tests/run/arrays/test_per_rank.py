"""Shared variables that are per rank after steps, and steps that are refused; first without a process."""

from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.run.arrays.per_rank import FIRST, OWN, ROWS, Cause, Effect, PerRank
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables

V, W, UNNAMED, STATE = 1, 2, 3, 4


def rank_0s_variables():
    variables = RankVariables(0, lambda value: value, lambda value: value)
    for identity, name in ((V, "v"), (W, "w"), (UNNAMED, None)):
        variables.adopt(identity, pytensor.shared(0.0, name=name))
    return variables


def per_rank(n_ranks=2):
    return PerRank(rank_0s_variables(), RanksByMachine([n_ranks]))


def scattered(*variables):
    return Effect(leaves_per_rank=variables, since="synk.scatter", kind=ROWS)


SCATTERED = Cause("synk.scatter", ROWS)


def reduced(*variables):
    return Effect(leaves_equal=variables)


def taking(*variables):
    return Effect(takes_equal=variables, name="f")


def test_effects_are_applied_in_order():
    state = per_rank()
    assert state.after([]) == state.after([None]) == state.after([reduced(V), taking(V, W)]) == {}
    assert state.after([scattered(V, W), reduced(V), taking(V)]) == {W: SCATTERED}
    assert state.after([scattered(V), reduced(V), Effect((), (V,), "synk.reduce")]) == {
        V: Cause("synk.reduce")
    }
    with pytest.raises(ValueError, match="function 'f' takes 'v' as equal"):
        state.after([scattered(V), taking(V), reduced(V)])
    assert state.now == {}  # it only says what would be


def test_parts_of_a_sum_are_added_up_before_they_are_read_as_one():
    state = per_rank()
    parts = Effect(leaves_per_rank=(V,), leaves_parts=(V,), since="slices")
    read = Effect(takes_equal=(V,), name="f", remedies={V: "do else"})
    replaced = reduced(V)._replace(replaces="synk.broadcast")
    assert state.after([parts, reduced(V), read]) == {}
    assert state.after([parts, reduced(V), replaced, read]) == {}  # it is the sum that is sent
    assert state.after([parts, replaced, taking(V)]) == {}  # taken as any value
    assert state.after([parts, replaced, parts, reduced(V), read]) == {}
    assert state.after([replaced, read]) == {}
    with pytest.raises(
        ValueError, match=r"'v' as the sum .* synk.broadcast has put .* 'sum'\) there, or do else"
    ):
        state.after([parts, replaced, read])
    assert per_rank(1).after([parts, replaced, read]) == {}
    with pytest.raises(ValueError, match=r"since slices; call synk.all_reduce\(v\) first, or do else"):
        state.after([parts, read])


def test_a_step_takes_what_was_before_it():
    state = per_rank()
    assert state.after([Effect(takes_equal=(V,), leaves_per_rank=(V,), since="f")]) == {V: Cause("f")}
    with pytest.raises(ValueError, match="takes 'v' as equal"):
        state.after([scattered(V), Effect(takes_equal=(V,), leaves_equal=(V,))])


def test_a_refusal_names_the_function_the_variable_the_cause_and_the_remedy():
    state = per_rank()
    with pytest.raises(ValueError, match="as equal") as refusal:
        state.after([scattered(V), taking(V)])
    assert str(refusal.value) == (
        "function 'f' takes 'v' as equal on all ranks, but its values differ between ranks since "
        "synk.scatter; call synk.all_reduce(v) or synk.broadcast(v) first, or declare the operation of the "
        "results that need it, as in (output, 'avg')"
    )
    with pytest.raises(ValueError, match=r"takes <Scalar.*synk.broadcast\(variable\) first"):
        state.after([scattered(UNNAMED), taking(UNNAMED)])


def test_the_state_is_the_same_object_as_long_as_it_is_equal():
    state = per_rank()
    before = state.now
    assert state.after([scattered(V), reduced(V)]) is before
    state.now = kept = state.after([scattered(V)])
    assert state.after([scattered(V), reduced(W)]) is kept
    assert state.after([reduced(V)]) == {}
    assert kept == {V: SCATTERED}  # commands and commits hold on to it


def test_a_command_that_failed_leaves_per_rank_all_that_was_so_on_its_way():
    state = per_rank()
    state.now = {W: Cause("synk.set_value on rank 1")}
    state.note_failed([scattered(V), None, reduced(V, W), taking(W)])
    assert state.now == {V: SCATTERED, W: Cause("synk.set_value on rank 1")}


def test_what_the_script_sets_is_per_rank_unless_it_is_a_random_state():
    variables = rank_0s_variables()
    variables.adopt(STATE, pytensor.shared(np.random.default_rng(1)))
    state = PerRank(variables, RanksByMachine([2]))
    before = state.now
    state.note_set(V)
    state.note_set(STATE)
    assert state.now == {V: Cause("set_value in the script, which changed rank 0 only", FIRST)}
    assert not before  # commands and commits hold on to it
    with pytest.raises(ValueError, match=r"'v' as equal.* since set_value.*synk.broadcast\(v\)"):
        state.after([taking(V)])


def test_variables_that_are_gone_are_forgotten():
    variables = rank_0s_variables()
    state = PerRank(variables, RanksByMachine([2]))
    state.now = state.after([scattered(V, W)])
    variables.drop(V)
    assert state.after([scattered(UNNAMED)]) == {W: SCATTERED, UNNAMED: SCATTERED}


def test_on_one_rank_nothing_is_refused_and_what_would_be_per_rank_on_several_is_noted():
    state = per_rank(n_ranks=1)
    assert state.after([scattered(V), taking(V)]) == {V: SCATTERED}
    assert state.after([Effect((), (V,), "f"), reduced(V)]) == {}
    state.note_failed([scattered(V)])
    state.note_set(V)
    state.note_set(W)
    assert state.now == {V: SCATTERED}


@pytest.mark.parametrize(
    ("before", "kind"), [([], FIRST), ([Effect((), (V,), "f")], FIRST), ([scattered(V)], OWN)]
)
def test_rank_0_s_part_of_the_rows_does_not_stand_for_itself(before, kind):
    state = per_rank()
    set_alone = Effect((), (V,), "synk.set_value on rank 0", kind=FIRST)
    assert state.after([*before, set_alone]) == {V: Cause("synk.set_value on rank 0", kind)}


# --- whole runs -----------------------------------------------------------------------------------


N_RANKS = 3
BATCH = np.arange(7.0)


@pytest.fixture(scope="module")
def run(module_ranks):
    return module_ranks


def shared(values, name="v"):
    return pytensor.shared(np.asarray(values, dtype="float64"), name=name, shape=(None,) * np.ndim(values))


def declared(function, takes=(), differ=(), equal=()):
    """Say what a function takes as equal, and which updated variables differ or are equal afterwards."""
    of = {id(one): True for one in differ} | {id(one): False for one in equal}
    updates = tuple(
        replace(update, per_rank=of.get(id(update.variable))) for update in function._definition.updates
    )
    function._definition = replace(function._definition, updates=updates, takes_equal=tuple(takes))
    return function


def sum_of(*variables, name="total"):
    """Return a function of the values of variables that are equal on all ranks."""
    return synk.function([], sum(one.sum() for one in variables), name=name)


def is_refused(function, *args):
    """Return whether a call is refused for what it takes as equal."""
    try:
        function(*args)
    except ValueError as error:
        return "as equal on all ranks" in str(error)
    return False


class Descent:
    """A gradient that each rank makes of its rows, and the update that takes it as equal."""

    def __init__(self):
        x = pt.vector("x")
        self.w, self.g = shared(2.0, "w"), shared([0.0, 0.0], "g")
        flat = pt.stack([((x - self.w) * 1.0).sum(), synk.n_rows])
        gradient = synk.function([x], updates=[(self.g, flat, "sum")], name="gradient")
        self.gradient = declared(gradient, takes=[self.w], differ=[self.g])
        step = 0.5 * self.g[0] / self.g[1]
        self.update = synk.function([], updates=[(self.w, self.w + step)], name="update")

    def expected(self, n_steps):
        w = 2.0
        for _ in range(n_steps):
            w += 0.5 * (BATCH - w).mean()
        return w


# By runs of their own: before the one that all others share.


@pytest.mark.slow
def test_a_restart_brings_back_what_was_per_rank_at_the_commit(ranks):
    ranks(N_RANKS)
    kept, spoilt, late = shared([1.0], "kept"), shared([1.0], "spoilt"), shared([1.0], "late")
    synk.scatter(kept, np.ones(3))
    synk.broadcast(spoilt)
    synk.commit()
    synk.broadcast(kept)
    synk.scatter([spoilt, late], [np.ones(3), np.ones(3)])
    functions = [sum_of(kept), sum_of(spoilt), sum_of(late)]
    assert [is_refused(function) for function in functions] == [False, True, True]
    with pytest.warns(synk.SynkWarning, match="no commit holds 'late'"):
        synk.restart()
    assert [is_refused(function) for function in functions] == [True, False, False]


def test_a_lone_rank_agrees_with_itself(ranks):
    ranks(1)
    of = Descent()
    synk.set_value(0, of.w, 2.0)
    of.gradient(BATCH)
    of.update.as_pytensor()
    of.gradient(BATCH)
    of.update()
    np.testing.assert_allclose(synk.get_value(0, of.w), of.expected(2))


def test_a_function_finds_what_it_takes_and_leaves_in_its_graph(run):
    x, v, total, twice = pt.vector("x"), shared([1.0]), shared(0.0, "total"), shared(0.0, "twice")
    read = [synk.function([], 2 * one.sum()) for one in (v, total)]
    declared_read = synk.function([], (v.sum(), "gather"))
    double = synk.function([], updates=[(v, 2 * v)])  # from itself
    own = synk.function([x], updates=[(total, x.sum(), "sum")])
    exact = synk.function([x], updates=[(total, x.sum())])
    beside = synk.function([], updates=[(twice, 2 * v.sum())])

    synk.set_value(1, v, [5.0])
    assert is_refused(read[0])
    assert is_refused(beside)
    assert declared_read().tolist() == [1, 5, 1]
    double()
    assert declared_read().tolist() == [2, 10, 2]
    assert is_refused(read[0])  # still
    own(BATCH)
    assert is_refused(read[1])
    exact(BATCH)
    assert read[1]() == 2 * BATCH.sum()


@pytest.mark.parametrize("operation", [None, "avg", "sum"])
def test_a_declared_update_of_what_is_per_rank_is_per_rank(run, operation):
    v, w, u = shared([1.0]), shared([1.0], "w"), shared([5.0], "u")
    copy = synk.function([], updates=[(v, 2 * w, operation), (u, v + 1, operation)], name="copy")
    totals = [sum_of(v), sum_of(u)]
    copy()
    assert [total() for total in totals] == [2, 2]
    synk.set_value(1, w, [3.0])
    copy()
    assert is_refused(totals[0])
    assert totals[1]() == 3  # of v before, which was equal
    copy()
    with pytest.raises(ValueError, match="'u'.* since function 'copy' made it of 'v', which differed"):
        totals[1]()
    synk.broadcast(w)
    synk.broadcast([v, u])
    copy()
    assert [total() for total in totals] == [2, 3]


# --- what collectives make of a variable ---------------------------------------------------------------

LEAVE = {
    "broadcast": (synk.broadcast, True),
    "broadcast of values": (lambda v: synk.broadcast(v, np.ones(4)), True),
    "all_reduce": (synk.all_reduce, True),
    "all_gather": (synk.all_gather, True),
    "scatter": (lambda v: synk.scatter(v, np.ones(9)), False),
    "set_value": (lambda v: synk.set_value(2, v, np.ones(4)), False),
    "reduce": (synk.reduce, False),
    "reduce_scatter": (synk.reduce_scatter, False),
    "all_to_all": (synk.all_to_all, False),
    "reduce, not in place": (lambda v: synk.reduce(v, in_place=False), None),
    "gather": (lambda v: synk.gather(v, nd_up=0), None),
    "get_value": (lambda v: synk.get_value(1, v), None),
    "get_lengths": (synk.get_lengths, None),
    "check_finite": (synk.check_finite, None),
}


@pytest.mark.parametrize("verb", LEAVE)
def test_collectives_leave_a_variable_equal_or_per_rank_or_as_it_was(run, verb):
    collective, leaves_equal = LEAVE[verb]
    for equal in (True, False):
        v = shared(np.ones(27))
        total = sum_of(v)
        if equal:
            assert total() == 27
        else:
            synk.scatter(v, np.ones(27))
        for _ in range(2):  # the second may be the first one, sent again
            collective(v)
            assert is_refused(total) != (equal if leaves_equal is None else leaves_equal)


def test_several_variables_and_random_states(run):
    v, w = shared([1.0], "v"), shared([2.0], "w")
    rng = pt.random.shared_rng(seed=1)
    following, draw = rng.normal()
    both = declared(
        synk.function([], [(v + w).sum(), draw], updates=[(rng, following)]), [v, w, rng], differ=[rng]
    )
    both()
    synk.broadcast([rng, v])
    both()
    synk.set_value(0, [v, w], [[3.0], [4.0]])
    synk.all_reduce(v)
    with pytest.raises(ValueError, match="takes 'w' as equal.* since synk.set_value on rank 0; call"):
        both()
    synk.all_reduce([v, w], "max")
    assert both()[0] == 5 / 3 + 4


# --- what functions make of a variable -----------------------------------------------------------------


def test_a_declared_update_is_per_rank_until_its_all_reduce(run):
    of = Descent()
    for _ in range(3):
        of.gradient(BATCH)
        with pytest.raises(ValueError, match="'update' takes 'g'.* since function 'gradient', in"):
            of.update()
        synk.all_reduce(of.g, "sum")
        of.update()
    np.testing.assert_allclose(synk.gather(of.w), [of.expected(3)] * N_RANKS)
    of.gradient(BATCH)
    synk.reduce(of.g, "sum")
    with pytest.raises(ValueError, match="'g'.* since synk.reduce, which changes rank 0 only"):
        of.update()


def test_one_command_is_looked_at_in_the_order_of_its_steps(run):
    of, data = Descent(), synk.data(BATCH)
    train = synk.sequence(of.gradient, (synk.all_reduce, of.g, "sum"), of.update)
    commands = set()
    for _ in range(4):
        train(data)
        commands.add(train._last)
    assert len(commands) == 1  # sent again
    assert None not in commands
    np.testing.assert_allclose(synk.gather(of.w), [of.expected(4)] * N_RANKS)

    synk.set_value(1, of.w, 7.0)
    with pytest.raises(ValueError, match="'gradient' takes 'w'.*set_value on rank 1"):
        train(data)
    np.testing.assert_array_equal(synk.gather(of.w)[1], 7)  # nothing has run
    synk.broadcast(of.w)
    train(data)
    assert {train._last} == commands
    np.testing.assert_allclose(synk.gather(of.w), [of.expected(5)] * N_RANKS)
    with pytest.raises(ValueError, match="'update' takes 'g'"):
        synk.sequence(of.gradient, of.update)(data)


def test_updates_of_a_variable_from_itself_are_legal_and_leave_it_as_it_was(run):
    v = shared([1.0, 2.0])
    grow, total = synk.function([], updates=[(v, v + 1)]), sum_of(v)
    grow()
    assert total() == 5
    synk.scatter(v, [1.0, 2.0, 3.0, 4.0])
    for _ in range(2):
        grow()
        assert is_refused(total)
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), [3, 4, 5, 6])


def test_an_update_may_make_a_variable_equal(run):
    v, w = shared([1.0]), shared([5.0], "w")
    copy, total = declared(synk.function([], updates=[(v, w)]), takes=[w], equal=[v]), sum_of(v)
    synk.set_value(1, v, [3.0])
    assert is_refused(total)
    copy()
    assert total() == 5
    synk.set_value(1, w, [3.0])
    assert is_refused(copy)


def test_as_pytensor_updates_rank_0_only(run):
    v = shared([1.0])
    grow = synk.function([], updates=[(v, v + 1)], name="grow")
    total = sum_of(v)
    total()
    grow.as_pytensor()
    with pytest.raises(ValueError, match="since 'grow'.as_pytensor, which updates it on rank 0 only"):
        total()
    synk.broadcast(v)
    assert total() == 2


def test_as_pytensor_does_not_take_rank_0_s_rows_for_all(run):
    table, of = shared(np.zeros(0), "table"), Descent()
    by_rows = synk.function([], table.sum(), sliceable_shareds=[table], name="by_rows")
    synk.scatter(table, np.arange(5.0))
    assert by_rows() == 10
    message = "'by_rows'.as_pytensor computes with rank 0's .* but 'table' is per rank since synk.scatter"
    with pytest.raises(ValueError, match=message):
        by_rows.as_pytensor()
    synk.all_gather(table)
    assert by_rows.as_pytensor() == 10
    of.gradient(BATCH)  # which leaves each rank a part of g
    with pytest.raises(ValueError, match="'update'.as_pytensor .* 'g' is per rank since function 'gradient'"):
        of.update.as_pytensor()
    both = synk.sequence(of.gradient, (synk.all_reduce, of.g, "sum"), of.update)
    for n_steps in (1, 2):  # the second goes on from rank 0's
        both.as_pytensor(BATCH)
        np.testing.assert_allclose(synk.get_value(0, of.w), of.expected(n_steps))


# --- refused before anything runs ----------------------------------------------------------------------


def test_a_sequence_of_two_commands_is_refused_before_the_first_one_runs(run):
    v, rows, count = shared([1.0]), shared(np.zeros(3), "rows"), shared(0.0, "count")
    step = synk.function([], updates=[(count, count + 1)])
    own = shared(0.0, "own")
    by_rows = synk.function(
        [],
        rows.sum() + v.sum(),
        updates=[(own, rows.sum(), "sum")],
        sliceable_shareds=[rows],
        name="by_rows",
    )
    declared(by_rows, takes=[v], differ=[own])
    both = synk.sequence(step, (synk.scatter, rows, np.ones(5)), by_rows)
    for n_calls in (0, 1):
        synk.set_value(1, v, [2.0])
        with pytest.raises(ValueError, match="'by_rows' takes 'v'"):
            both()
        assert synk.gather(count).tolist() == [n_calls] * N_RANKS
        synk.broadcast(v)
        assert both() == 5 + 1
        with pytest.raises(ValueError, match="takes 'own'.* since function 'by_rows'"):
            sum_of(own)()


# --- commands that fail --------------------------------------------------------------------------------


def test_a_command_that_fails_makes_nothing_equal(run):
    of, bad, data = Descent(), shared([1.0], "bad"), synk.data(BATCH)
    total, of_bad = sum_of(of.g), sum_of(bad)
    train = synk.sequence(
        of.gradient,
        (synk.check_finite, bad),
        (synk.all_reduce, of.g, "sum"),
        (synk.broadcast, bad),
    )
    for _ in range(2):  # prepared, and sent again
        train(data)
        assert not is_refused(total)
        synk.set_value(1, bad, [np.nan])
        for _ in range(2):
            with pytest.raises(synk.NonFinite):
                train(data)
            assert is_refused(total)
            assert is_refused(of_bad)
        synk.broadcast(bad, [1.0])
    train(data)
    assert not is_refused(total)
