"""Steps of each rank along its own gradient, against the formulas in NumPy on its own rows."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from support.slow import slow
from support.update_rules import FORMULAS
from synk.extensions import updates
from synk.extensions.train import make_train_function

module_ranks = runs_of(3, later=[1])

X = np.random.default_rng(0).normal(size=(11, 3))
Y = X @ np.array([1.0, -2.0, 0.5])
START = np.full(3, 0.3)
N_STEPS = 3
BY_NAME = {formula.__name__: formula for formula in FORMULAS}


class Regression:
    """Least squares with a regulariser."""

    def __init__(self):
        self.x, self.y = pt.dmatrix("x"), pt.dvector("y")
        self.w = pytensor.shared(START, name="w")
        self.loss = pt.sqr(self.x @ self.w - self.y).mean() + 0.1 * pt.sqr(self.w).sum()

    def functions(self, made):
        gradient = synk.function(
            [self.x, self.y], (self.loss, "avg"), updates=made.grad_updates, name="gradient"
        )
        return gradient, synk.function([], updates=made.param_updates, name="update")


def gradient_of(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x) + 0.2 * w


def descended(formula, x, y, max_norm, **options):
    """Return the parameters after the steps, by NumPy; without rows there are none."""
    w, state = START, {}
    for t in range(1, N_STEPS + 1):
        if len(x):
            g = gradient_of(w, x, y)
            w = formula(w, g * min(1, max_norm / np.linalg.norm(g)), t, state, **options)
    return w


@pytest.mark.parametrize(
    ("rule", "max_norm"),
    [
        ("adam", 0.5),
        slow("sgd", np.inf),
        *(slow(rule, 0.5) for rule in sorted(BY_NAME) if rule != "adam"),
        slow("adam", np.inf),
    ],
)
def test_each_rank_follows_the_gradient_of_its_own_rows(module_ranks, rule, max_norm):
    model, limited = Regression(), getattr(updates, rule)
    if np.isfinite(max_norm):
        limited = updates.clipped(limited, max_norm)
    made = updates.local(limited)(model.loss, [model.w], learning_rate=0.05)
    step = synk.sequence(*model.functions(made))
    start = {variable: variable.get_value() for variable, *_ in made.param_updates}
    for n_rows, num_slices in ((11, 1), (11, 2), (2, 1), (1, 2)):  # the last ones leave ranks without rows
        for variable, value in start.items():
            synk.broadcast(variable, value)
        for _ in range(N_STEPS):
            step(X[:n_rows], Y[:n_rows], num_slices=num_slices)
        shares = np.array_split(np.arange(n_rows), module_ranks)
        expected = [
            descended(BY_NAME[rule], X[rows], Y[rows], max_norm, learning_rate=0.05) for rows in shares
        ]
        np.testing.assert_allclose(synk.gather(model.w, nd_up=1), expected, rtol=1e-9)


@pytest.mark.parametrize(("rule", "operation"), [("momentum", "avg"), slow("adam", None)])
def test_a_step_that_leaves_the_all_reduce_out_is_refused_declared_or_not(module_ranks, rule, operation):
    model = Regression()
    made = getattr(updates, rule)(model.loss, [model.w], learning_rate=0.05)
    declared = [(v, new, operation if new.dtype == "float64" else None) for v, new in made.param_updates]
    for updated in (declared, made.param_updates):
        step = synk.sequence(*model.functions(made._replace(param_updates=updated)))
        if module_ranks == 1:
            step(X, Y)
            continue
        with pytest.raises(ValueError, match=r"takes 'flat_gradient'.*all_reduce\(flat_gradient\)"):
            step(X, Y)
        np.testing.assert_array_equal(synk.gather(model.w, nd_up=1), [START] * module_ranks)
    with_it = synk.sequence(
        *model.functions(made._replace(param_updates=declared))[:1],
        (synk.all_reduce, made.flat_gradient, "sum"),
        model.functions(made._replace(param_updates=declared))[1],
    )
    with_it(X, Y)
    assert np.isfinite(synk.gather(model.w, nd_up=1)).all()


@pytest.mark.parametrize(
    ("collective", "said"),
    [((synk.all_reduce, "max"), "synk.all_reduce by 'max'"), slow((synk.broadcast,), "synk.broadcast")],
)
def test_a_step_whose_gradients_are_not_added_up_is_refused(module_ranks, collective, said):
    model = Regression()
    made = updates.sgd(model.loss, [model.w], learning_rate=0.05)
    gradient, update = model.functions(made)
    verb, *operation = collective
    step = synk.sequence(gradient, (verb, made.flat_gradient, *operation), update)
    if module_ranks == 1:
        step(X, Y)
        return
    with pytest.raises(ValueError, match=f"takes 'flat_gradient' as the sum .* but {said} has put"):
        step(X, Y)
    np.testing.assert_array_equal(synk.gather(model.w, nd_up=1), [START] * module_ranks)


def test_the_refusal_names_the_rule_that_does_it(module_ranks):
    model = Regression()
    made = updates.sgd(model.loss, [model.w], learning_rate=0.05)
    step = synk.sequence(*model.functions(made._replace(param_updates=[(*made.param_updates[0], "avg")])))
    if module_ranks > 1:
        with pytest.raises(ValueError, match=r"updates.local\(rule\)$"):
            step(X, Y)


def test_local_stands_outermost():
    model = Regression()
    local = updates.local(updates.sgd)
    for rule in (updates.clipped(local, 1.0), updates.local(local)):
        with pytest.raises(ValueError, match="put local outermost"):
            rule(model.loss, [model.w], learning_rate=0.1)
    with pytest.raises(ValueError, match="put local outermost"):
        updates.apply_momentum(local(model.loss, [model.w], learning_rate=0.1), model.w)
    with pytest.raises(ValueError, match="make_train_function needs"):
        make_train_function(model.loss, [model.w], [model.x, model.y], local, learning_rate=0.1)


class Replica:
    """Takes local steps on its own rows, by the parts of a training step."""

    def __init__(self, rank, gradient, update, rows):
        self.gradient, self.update, self.rows = gradient, update, rows[rank]

    def __call__(self, x, y):
        for _ in range(N_STEPS):
            self.gradient(x[self.rows], y[self.rows])
            self.update()


@pytest.mark.parametrize("rule", [slow("sgd"), "adam"])
def test_the_parts_of_a_step_make_local_steps_on_ranks(module_ranks, rule):
    model = Regression()
    step = make_train_function(
        model.loss, model.w, [model.x, model.y], getattr(updates, rule), learning_rate=0.05
    )
    rows = np.array_split(np.arange(11), module_ranks)
    replicas = synk.on_ranks(Replica, step.parts.gradient, step.parts.update, rows)
    replicas(X, Y)
    expected = [descended(BY_NAME[rule], X[own], Y[own], np.inf, learning_rate=0.05) for own in rows]
    np.testing.assert_allclose(synk.gather(model.w, nd_up=1), expected, rtol=1e-9)
    if module_ranks > 1:
        with pytest.raises(ValueError, match="'gradient' takes 'w' as equal.*since synk.on_ranks"):
            step(X, Y)
    synk.all_reduce(step.parts.params, "avg")
    np.testing.assert_allclose(model.w.get_value(), np.mean(expected, axis=0), rtol=1e-9)


@pytest.mark.slow
def test_the_parts_in_a_sequence_are_the_step(module_ranks):
    whole, apart = Regression(), Regression()
    steps = [
        make_train_function(one.loss, [one.w], [one.x, one.y], updates.momentum, learning_rate=0.05)
        for one in (whole, apart)
    ]
    gradient, all_reduce, update, params = steps[1].parts
    assert params == [apart.w]
    again = synk.sequence(gradient, all_reduce, update)
    for _ in range(3):
        assert steps[0](X, Y) == again(X, Y)
    assert whole.w.get_value().tobytes() == apart.w.get_value().tobytes()
