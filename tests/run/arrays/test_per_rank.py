"""Which shared variables are per rank after steps, and which steps are refused: no process is needed."""

import numpy as np
import pytensor
import pytest

from synk.run.arrays.per_rank import FIRST, OWN, ROWS, Effect, PerRank, Since
from synk.run.arrays.variables import RankVariables

V, W, UNNAMED, STATE = 1, 2, 3, 4


def rank_0s_variables():
    variables = RankVariables(0, lambda value: value, lambda value: value)
    for identity, name in ((V, "v"), (W, "w"), (UNNAMED, None)):
        variables.adopt(identity, pytensor.shared(0.0, name=name))
    return variables


def per_rank(n_ranks=2):
    return PerRank(rank_0s_variables(), n_ranks)


def scattered(*variables):
    return Effect(leaves_per_rank=variables, since="synk.scatter", kind=ROWS)


SCATTERED = Since("synk.scatter", ROWS)


def reduced(*variables):
    return Effect(leaves_equal=variables)


def taking(*variables):
    return Effect(takes_equal=variables, name="f")


def test_effects_are_applied_in_order():
    state = per_rank()
    assert state.after([]) == state.after([None]) == state.after([reduced(V), taking(V, W)]) == {}
    assert state.after([scattered(V, W), reduced(V), taking(V)]) == {W: SCATTERED}
    assert state.after([scattered(V), reduced(V), Effect((), (V,), "synk.reduce")]) == {
        V: Since("synk.reduce")
    }
    with pytest.raises(ValueError, match="function 'f' takes 'v' as equal"):
        state.after([scattered(V), taking(V), reduced(V)])
    assert state.now == {}  # it only says what would be


def test_a_step_takes_what_was_before_it():
    state = per_rank()
    assert state.after([Effect(takes_equal=(V,), leaves_per_rank=(V,), since="f")]) == {V: Since("f")}
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
    state.now = {W: Since("synk.set_value on rank 1")}
    state.note_failed([scattered(V), None, reduced(V, W), taking(W)])
    assert state.now == {V: SCATTERED, W: Since("synk.set_value on rank 1")}


def test_what_the_script_sets_is_per_rank_unless_it_is_a_random_state():
    variables = rank_0s_variables()
    variables.adopt(STATE, pytensor.shared(np.random.default_rng(1)))
    state = PerRank(variables, n_ranks=2)
    before = state.now
    state.note_set(V)
    state.note_set(STATE)
    assert state.now == {V: Since("set_value in the script, which changed rank 0 only", FIRST)}
    assert not before  # commands and commits hold on to it
    with pytest.raises(ValueError, match=r"'v' as equal.* since set_value.*synk.broadcast\(v\)"):
        state.after([taking(V)])


def test_variables_that_are_gone_are_forgotten():
    variables = rank_0s_variables()
    state = PerRank(variables, n_ranks=2)
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
    assert state.after([*before, set_alone]) == {V: Since("synk.set_value on rank 0", kind)}
