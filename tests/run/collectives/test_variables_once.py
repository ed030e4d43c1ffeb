"""Parameters that live once are changed, moved and read by other means as any variable: the same numbers."""

from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.divided import (
    Trained,
    X,
    assert_equal,
    flat_of,
    is_divided,
    without_room_for_arrays_of_each_rank,
)
from support.processes.of_rank import runs_of, same_on_all
from support.slow import slow
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.run.session import current

module_ranks = runs_of(2, later=[1, 3])


def test_variables_live_once_in_the_memory_of_the_machine(module_ranks, runs):
    trained = runs[1]
    trained.train(1)
    table = current.session("test").memory.shared
    storage = current.session("test").memory.variables
    for variable in (one for one in trained.step.state if one.name != "t"):
        arrays = storage.storage(table.identify(variable))
        assert {one.__array_interface__["data"][0] for one in arrays} == {
            variable.get_value(borrow=True).__array_interface__["data"][0]
        }


def twice(trained):
    """Return a function that doubles the first parameter on all ranks."""
    W = trained.params[0]
    return synk.function([], updates=[(W, W * 2)])


def changes(trained):
    """Return ways to change or read parameters between steps, by name."""
    W, b, v, c = trained.params
    doubled = twice(trained)
    value = np.full(b.get_value().shape, 0.25, "float32")
    norms = synk.function([trained.x], [(trained.loss, "avg"), pt.sqr(W).sum()])
    return {
        "a function": doubled,
        "a function of rows": synk.function(
            [trained.x], updates=[(v, v + trained.x.sum().astype("float32"))]
        ),
        "a function in a mode of PyTensor": synk.function([], updates=[(b, b * 2)], mode="FAST_COMPILE"),
        "broadcast of a value": partial(synk.broadcast, b, value),
        "broadcast": partial(synk.broadcast, [W, c]),
        "all_reduce": partial(synk.all_reduce, [W, b], "avg"),
        "all_reduce by sum": partial(synk.all_reduce, v, "sum"),
        "reading": norms,
        "reading by gather": partial(synk.gather, W, nd_up=0),
        "set everywhere": lambda: (
            [synk.set_value(rank, c, np.float32(0.5)) for rank in range(synk.n_ranks())] and synk.broadcast(c)
        ),
        "a commit": synk.commit,
    }


CHANGES = [
    "a function",
    "a function of rows",
    "a function in a mode of PyTensor",
    "broadcast of a value",
    "broadcast",
    "all_reduce",
    "all_reduce by sum",
    "reading",
    "reading by gather",
    "set everywhere",
    "a commit",
]


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_or_reads_variables_between_steps_does_so_as_before(module_ranks, runs, what):
    for trained in runs:
        trained.train(1)
        change = changes(trained)[what]
        arguments = (X,) if what in ("a function of rows", "reading") else ()
        for _ in range(2):  # the second time, commands are sent again as they are
            change(*arguments)
            trained.train(1)
        change(*arguments)
        change(*arguments)
        trained.train(2)
    assert_equal(*runs, module_ranks)


def in_a_sequence(trained):
    """Return items of a sequence that change, move or read the parameter W, by name."""
    W = trained.params[0]
    return {
        "a function": twice(trained),
        "broadcast": partial(synk.broadcast, W),
        "all_reduce": partial(synk.all_reduce, W, "sum"),
        "gather": partial(synk.gather, W),
    }


@pytest.mark.parametrize("what", ["a function", slow("broadcast"), "all_reduce", slow("gather")])
@pytest.mark.parametrize("place", [slow(0), slow(1), 2], ids=["first", "between", "last"])
def test_others_in_the_same_command_find_the_variables_as_before(module_ranks, runs, what, place):
    for trained in runs:
        gradient, all_reduce, update, _ = trained.step.parts
        reduced = [all_reduce, update]
        if trained is runs[1]:
            reduced = [synk.sharded_update(update, flat_of(trained.step.parts))]
        items = [gradient, *reduced]
        items.insert(place if place < 2 else len(items), in_a_sequence(trained)[what])
        step = synk.sequence(*items)
        for _ in range(3):
            step(X)
    assert_equal(*runs, module_ranks)
    assert "another part of its sequence changes or collects 'W'" in "\n".join(step.explanation())
    required = synk.sharded_update(update, flat_of(trained.step.parts), required=True)
    if module_ranks > 1:
        with pytest.raises(ValueError, match="cannot be divided among the ranks: another part"):
            synk.sequence(gradient, required, in_a_sequence(trained)[what])


@pytest.mark.slow
def test_others_that_change_the_variables_now_and_then_do_not_end_the_division(module_ranks, runs):
    for trained in runs:
        for _ in range(5):
            synk.broadcast(trained.params)
            trained.train(25)
    assert_equal(*runs, module_ranks)
    assert is_divided(runs[1])


@pytest.mark.slow
def test_others_that_change_the_variables_again_and_again_make_every_rank_update_all(module_ranks):
    plain, divided = (Trained(updates.sgd, shard, learning_rate=0.05) for shard in (None, "auto"))
    for trained in (plain, divided):
        double = twice(trained)
        for _ in range(6):
            double()
            trained.train(1)
    assert_equal(plain, divided, module_ranks)
    assert "others change them between its calls" in "\n".join(divided.step.explanation())


def test_two_steps_of_the_same_parameters_have_the_numbers_of_one_process(module_ranks):
    runs = []
    for shard in (None, "auto"):
        trained = Trained(updates.sgd, shard, learning_rate=0.05)
        few = make_train_function(
            pt.sqr(trained.params[0]).mean(),
            trained.params[:1],
            [],
            updates.sgd,
            learning_rate=0.1,
            shard=shard,
        )
        for _ in range(8):
            trained.train(1)
            few()
        runs.append(trained)
    assert_equal(*runs, module_ranks)


def test_a_value_that_is_set_on_rank_0_alone_is_refused_by_name(module_ranks, runs):
    if module_ranks == 1:
        pytest.skip("there is no rank with another value")
    trained = runs[1]
    trained.train(1)
    with pytest.warns(synk.SynkWarning, match="changed rank 0 only"):
        trained.params[1].set_value(np.zeros(21, "float32"))
    with pytest.raises(ValueError, match="takes 'b' as equal on all ranks"):
        trained.step(X)
    synk.broadcast(trained.params[1])
    trained.train(1)


def test_as_pytensor_changes_rank_0_alone(module_ranks, runs):
    trained = runs[1]
    trained.train(1)
    before = trained.params[0].get_value()
    trained.step.as_pytensor(X)
    first, *others = synk.gather(trained.params[0], nd_up=1)
    assert not np.array_equal(first, before)
    for other in others:
        np.testing.assert_array_equal(other, before)


class Doubling:
    def __init__(self, rank, variable):
        self.variable = variable

    def __call__(self):
        self.variable.set_value(2 * self.variable.get_value())


def test_objects_on_ranks_change_a_copy_of_each_rank(module_ranks, runs):
    for trained in runs:
        trained.train(1)
        objects = synk.on_ranks(Doubling, trained.params[0], changes=[trained.params[0]])
        objects()
        synk.all_reduce(trained.params[0], "avg")
        trained.train(2)
    assert_equal(*runs, module_ranks)


@pytest.mark.parametrize("what", ["set_value", slow("reduce"), slow("scatter")])
def test_without_room_what_changes_one_rank_changes_no_other(module_ranks, runs, monkeypatch, what):
    rows = []
    for trained in runs:
        trained.train(1)
        v = trained.params[2]
        with monkeypatch.context() as patched:
            without_room_for_arrays_of_each_rank(patched)
            if what == "set_value":
                synk.set_value(module_ranks - 1, v, np.full(21, 0.5, "float32"))
            elif what == "reduce":
                synk.reduce(v, "sum")
            else:
                synk.scatter(v, np.arange(21 * module_ranks, dtype="float32"))
            rows.append([synk.get_value(rank, v) for rank in range(module_ranks)])
            synk.broadcast(v)
    np.testing.assert_array_equal(*rows)
    for trained in runs:
        trained.train(2)
    assert_equal(*runs, module_ranks)


def test_a_parameter_of_another_shape_is_refused_as_by_the_sequence(module_ranks):
    for shard in (None, "auto"):
        w = pytensor.shared(np.ones(5, "float32"), name="w")
        step = make_train_function(pt.sqr(w).mean(), [w], [], updates.sgd, learning_rate=0.1, shard=shard)
        step()
        synk.broadcast(w, np.ones(7, "float32"))
        with pytest.raises(AssertionError, match=r"got shape \(7,\), expected \(5,\)"):
            step()
        synk.broadcast(w, np.ones(5, "float32"))
        step()
        np.testing.assert_allclose(same_on_all(w, module_ranks), 0.96, rtol=1e-6)
