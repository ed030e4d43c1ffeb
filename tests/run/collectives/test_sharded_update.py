"""Updates of which each rank computes a part: the bits of the sequence."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.divided import (
    RULES,
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
from synk.extensions.gradients import global_norm
from synk.extensions.train import make_train_function
from synk.run.session import current
from synk.values.errors import SharedMemoryFull

module_ranks = runs_of(2, later=[1, 3])

GEOMETRIES = [(7, 1), (1, 1), (7, 3), (2, 2)]  # rows, slices: some ranks have no rows


@pytest.mark.parametrize("name", [slow(name) if name != "adam" else name for name in RULES])
def test_losses_and_variables_are_those_of_the_sequence(module_ranks, name):
    rule = getattr(updates, name)
    plain, divided = (Trained(rule, shard, **RULES[name]) for shard in (None, "auto"))
    for rows, num_slices in GEOMETRIES:
        losses = [one.train(batch=rows, num_slices=num_slices) for one in (plain, divided)]
        assert losses[0] == losses[1]
    assert is_divided(divided)
    assert not is_divided(plain)
    assert_equal(plain, divided, module_ranks)


@pytest.mark.parametrize("rule", [slow(updates.sgd), updates.clipped(updates.sgd, 0.1)])
def test_a_loss_without_rows_is_a_step(module_ranks, rule):
    values = []
    for shard in (None, "auto"):
        w = pytensor.shared(np.ones(40, "float32"), name="w")
        step = make_train_function(pt.sqr(w).mean(), [w], [], rule, learning_rate=0.1, shard=shard)
        step()
        synk.broadcast(w)
        for _ in range(8):  # the broadcast has moved it: it is laid out again, and stays
            step()
        values.append(same_on_all(w, module_ranks))
    np.testing.assert_array_equal(*values)


def test_parts_that_are_added_up_already_are_refused(module_ranks, runs):
    if module_ranks == 1:
        pytest.skip("a part of one rank is the sum")
    trained = runs[1]
    parts = trained.step.parts
    divided = synk.sharded_update(parts.update, flat_of(parts))
    with pytest.raises(ValueError, match="adds up the ranks' parts of 'flat_gradient' by itself"):
        synk.sequence(parts.gradient, parts.all_reduce, divided)(X)
    synk.sequence(parts.gradient, divided)(X)
    parts.gradient(X)
    divided()


def test_the_sum_of_the_gradients_is_read_once_it_is_added_up(module_ranks):
    if module_ranks == 1:
        pytest.skip("a part of one rank is the sum")
    w, x = pytensor.shared(np.arange(3.0), name="w"), pt.dmatrix("x")
    made = updates.sgd(pt.sqr(x @ w).mean(), w, learning_rate=0.1)
    step = make_train_function(pt.sqr(x @ w).mean(), w, [x], lambda loss, params: made)
    norm = synk.function([], (global_norm(made.flat_gradient), None))
    expected = np.linalg.norm(2 * X.T @ (X @ np.arange(3.0)) / len(X))
    step(X)
    with pytest.raises(
        ValueError, match=r"call synk.all_reduce\(flat_gradient, 'sum'\) first, or .* shard=None"
    ):
        norm()
    synk.all_reduce(made.flat_gradient, "sum")
    np.testing.assert_allclose(norm(), expected, rtol=1e-12)


@pytest.mark.slow
def test_the_parts_of_a_step_make_the_same_step(module_ranks, runs):
    whole, parts = runs
    whole.train(3)
    gradient, all_reduce, update, _ = parts.step.parts
    for _ in range(3):
        gradient(X)
        all_reduce()
        update()
    assert_equal(whole, parts, module_ranks)


NUMBERS = [(0.1, 0.9), (0.05, 0.5), (0.1, 0.9), (0.9, 0.1), (0.9, 0.5)]  # learning rates and momenta in turn


@pytest.mark.slow
@pytest.mark.parametrize("by", ["momentum", slow("clipped")])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a sequence"])
def test_numbers_of_the_rule_are_inputs_of_each_call(module_ranks, alone, by):
    rule = updates.momentum if by == "momentum" else updates.clipped(updates.momentum, 0.1)
    runs = []
    for shard in (None, "auto"):
        rate, momentum = pt.fscalar("rate"), pt.fscalar("momentum")
        settings = {"learning_rate": rate, "momentum": momentum, "bcast_inputs": [rate, momentum]}
        trained = Trained(rule, shard, **settings)
        gradient, all_reduce, update, _ = trained.step.parts
        divided = synk.sharded_update(update, flat_of(trained.step.parts))
        for numbers in np.float32(NUMBERS):
            if not alone:
                trained.step(X, *numbers)
                continue
            gradient(X, *numbers)
            if shard is None:
                all_reduce()
            given = dict(zip((rate, momentum), numbers, strict=True))
            (update if shard is None else divided)(*[given[one] for one in update.inputs])
        runs.append(trained)
    if by == "momentum":
        assert_equal(*runs, module_ranks)
    for a, b in zip(runs[0].values(), runs[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # a norm is added up in another order
    assert is_divided(runs[1])


@pytest.mark.slow
def test_running_values_of_all_rows_are_updated_beside(module_ranks):
    runs = []
    for shard in (None, "auto"):
        mean = pytensor.shared(np.zeros(3, "float32"), name="mean")
        x = pt.fmatrix("x")
        w = pytensor.shared(np.ones(3, "float32"), name="w")
        loss = pt.sqr((x - mean) @ w - 1).mean()
        kept = np.float32(0.9) * mean + np.float32(0.1) * x.mean(0)
        step = make_train_function(
            loss, [w], [x], updates.adam, updates=[(mean, kept)], shard=shard, check_finite=True
        )
        losses = [float(step(X)) for _ in range(4)]
        runs.append((losses, w.get_value(), mean.get_value()))
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("limit", [0.1, slow(1e6)])
def test_gradients_are_clipped_by_a_norm_of_which_each_rank_adds_up_a_part(module_ranks, limit):
    runs = [Trained(updates.clipped(updates.adam, limit), shard) for shard in (None, "auto")]
    for rows, num_slices in GEOMETRIES:
        plain, divided = [one.train(batch=rows, num_slices=num_slices) for one in runs]
        np.testing.assert_allclose(divided, plain, rtol=1e-5)
    for a, b in zip(*[one.values() for one in runs], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # the norm is added up in another order
    for variable in runs[1].params:
        same_on_all(variable, module_ranks)
    assert is_divided(runs[1])


def by_norms(loss, params):
    """Divide each parameter's gradient by the norm of the parameter, as LARS does."""
    plain = updates.sgd(loss, params, 0.1)
    pairs = [(p, p + (new - p) / pt.sqrt(1 + pt.sum(pt.sqr(p)))) for p, new in plain.param_updates]
    return plain._replace(param_updates=pairs)


@pytest.mark.slow
def test_a_rule_that_needs_all_of_a_parameter_is_updated_by_every_rank(module_ranks):
    runs = [Trained(by_norms, shard) for shard in (None, "auto")]
    for trained in runs:
        trained.train(3)
    assert_equal(*runs, module_ranks)
    assert "is not elementwise" in "\n".join(runs[1].step.explanation())
    if module_ranks > 1:
        with pytest.raises(ValueError, match="cannot be divided among the ranks: .*is not elementwise"):
            Trained(by_norms, "state")


@pytest.mark.slow
def test_without_room_in_shared_memory_every_rank_updates_all(module_ranks, monkeypatch):
    if module_ranks != 2:
        pytest.skip("the length that is refused below is that of two ranks")
    plain, divided = (Trained(updates.adam, shard, hidden=50) for shard in (None, "auto"))
    segments = current.session("test").memory.segments
    allocate = type(segments).allocate

    def full(self, nbytes, *arguments, **keywords):
        if nbytes >= 3 * 4 * 251:  # three vectors of 3 * 50 + 50 + 50 + 1 elements
            raise SharedMemoryFull("no room, says the test")
        return allocate(self, nbytes, *arguments, **keywords)

    monkeypatch.setattr(type(segments), "allocate", full)
    assert plain.train() == divided.train()
    assert_equal(plain, divided, module_ranks)
    assert "there is no room for them in shared memory" in "\n".join(divided.step.explanation())


def test_without_room_for_the_flat_vectors_every_rank_updates_all(module_ranks, monkeypatch):
    plain, divided = (Trained(updates.sgd, shard, hidden=500, learning_rate=0.05) for shard in (None, "auto"))
    without_room_for_arrays_of_each_rank(monkeypatch)
    assert plain.train() == divided.train()
    assert_equal(plain, divided, module_ranks)
    assert "there is no room for them in shared memory" in "\n".join(divided.step.explanation())


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda f, flat: (f.gradient, flat), TypeError, "broadcast inputs and updates alone"),
        (lambda f, flat: (np.add, flat), TypeError, "made by synk.function"),
        (lambda f, flat: (f.update, pt.fvector("g")), TypeError, "needs a shared vector"),
        (lambda f, flat: (f.update, f.params[0]), TypeError, "needs a shared vector"),
    ],
    ids=["a gradient function", "no function", "no shared variable", "a matrix"],
)
def test_what_is_no_update_along_a_vector_is_refused(runs, make, error, match):
    parts = runs[1].step.parts
    with pytest.raises(error, match=match):
        synk.sharded_update(*make(parts, flat_of(parts)))


def test_an_unknown_way_to_divide_is_refused():
    with pytest.raises(ValueError, match="shard='params' is unknown"):
        Trained(shard="params")
