"""Rules around rules, against the formulas in NumPy; on ranks against one process."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from support.slow import slow
from support.update_rules import adam, adamw, sgd
from synk.extensions import checkpoint, schedules, updates
from synk.extensions.train import make_train_function

module_ranks = runs_of(2, later=[1, 3])

RANDOM = np.random.default_rng(4)
X, Y = RANDOM.normal(size=(7, 3)), RANDOM.normal(size=(7, 2))
START = {"W": RANDOM.normal(size=(3, 2)), "b": RANDOM.normal(size=2)}


class Regression:
    """Least squares; `follow` makes the steps of a rule on ranks."""

    def __init__(self):
        self.x, self.y = pt.tensor("x", shape=(None, 3)), pt.tensor("y", shape=(None, 2))
        self.params = [pytensor.shared(value, name=name, shape=value.shape) for name, value in START.items()]
        W, b = self.params
        self.loss = pt.sqr(self.x @ W + b - self.y).mean()

    def step(self, rule, **options):
        return make_train_function(self.loss, self.params, [self.x, self.y], rule, **options)

    def values(self):
        return {param.name: param.get_value() for param in self.params}


def gradients(params, rows=slice(None)):
    x, y = X[rows], Y[rows]
    residual = 2 * (x @ params["W"] + params["b"] - y) / y.size
    return {"W": x.T @ residual, "b": residual.sum(0)}


def followed(formula, all_gradients, start=START, **options):
    """Return the parameters after steps along gradients, each a function of the parameters."""
    params, states = dict(start), {"W": {}, "b": {}}
    for t, of in enumerate(all_gradients, 1):
        g = of(params)
        params = {name: formula(p, g[name], t, states[name], **options) for name, p in params.items()}
        yield params


def same(found, wanted, rtol=1e-10):
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, err_msg=name)


# --- averages --------------------------------------------------------------------------------------


def test_averages_follow_the_parameters_and_are_evaluated_with():
    model = Regression()
    rule = updates.averaged(updates.adam, decay=0.8)
    step = model.step(updates.clipped(rule, 1e9), learning_rate=0.05)
    test = synk.function([model.x, model.y], rule.evaluated(model.loss))
    average = dict(START)
    for params in followed(adam, [gradients] * 4, learning_rate=0.05):
        step(X, Y)
        average = {name: 0.8 * value + 0.2 * params[name] for name, value in average.items()}
    same(model.values(), params)
    same({p.name: rule.averages[p].get_value() for p in model.params}, average)
    wanted = ((X @ average["W"] + average["b"] - Y) ** 2).mean()
    np.testing.assert_allclose(test(X, Y), wanted, rtol=1e-10)
    assert [one.name for one in step.state][-2:] == ["W_average", "b_average"]


def test_averages_are_divided_with_the_parameters(module_ranks):
    step = Regression().step(updates.averaged(updates.adam))
    assert "live once" in "\n".join(step.explanation())


def test_several_graphs_are_evaluated_and_others_refused():
    model, rule = Regression(), updates.averaged(updates.sgd, 0.5)
    with pytest.raises(ValueError, match=r"depend on none of the averaged parameters \[\]; make the step"):
        rule.evaluated(model.loss)
    rule(model.loss, model.params, learning_rate=0.1)
    both = rule.evaluated([model.loss, model.x])
    assert both[1] is model.x
    read = {one.name for one in pytensor.graph.traversal.ancestors([both[0]])}
    assert "W_average" in read
    assert "W" not in read


# --- decay -----------------------------------------------------------------------------------------


def test_weights_decay_and_biases_do_not():
    model = Regression()
    step = model.step(updates.decayed(updates.adam, 0.3), learning_rate=0.05)
    decaying = list(followed(adamw, [gradients], learning_rate=0.05, weight_decay=0.3))[-1]
    plain = list(followed(adam, [gradients], learning_rate=0.05))[-1]
    step(X, Y)
    same(model.values(), {"W": decaying["W"], "b": plain["b"]})


@pytest.mark.slow
def test_another_choice_of_what_decays_gives_adamw(module_ranks):
    model = Regression()
    rule = updates.decayed(updates.adam, 0.01, decays=lambda param: True)
    step = model.step(rule)  # the rate is that of adam by default
    for _ in range(3):
        step(X, Y)
    same(model.values(), list(followed(adamw, [gradients] * 3))[-1])
    assert "live once" in "\n".join(step.explanation())


def test_two_rules_are_explained(module_ranks):
    said = "\n".join(Regression().step(updates.decayed(updates.sgd, 0.1), learning_rate=0.1).explanation())
    assert "is updated by another rule than" in said


def test_decay_without_a_rate_is_refused():
    model = Regression()
    with pytest.raises(ValueError, match="decayed finds no learning_rate of its rule"):
        updates.decayed(updates.sgd, 0.1)(model.loss, model.params)


# --- gradients of several calls --------------------------------------------------------------------


@pytest.mark.parametrize("n_calls", [3, slow(1)])
def test_a_step_of_several_calls_is_that_of_their_mean_gradient(n_calls):
    """A norm is that of the mean; a count of steps inside counts these."""
    model, counter = Regression(), schedules.counter()
    inner = schedules.counting(updates.clipped(updates.adam, 0.2), counter)
    step = model.step(updates.accumulated(inner, n_calls), learning_rate=0.05)
    parts = [slice(0, 3), slice(3, 6), slice(4, 7)][:n_calls]

    def mean_clipped(params):
        found = [gradients(params, rows) for rows in parts]
        mean = {name: np.mean([one[name] for one in found], axis=0) for name in START}
        norm = np.sqrt(sum((g**2).sum() for g in mean.values()))
        return {name: g * min(1, 0.2 / norm) for name, g in mean.items()}

    before = model.values()
    for params in followed(adam, [mean_clipped] * 2, learning_rate=0.05):
        for number, rows in enumerate(parts, 1):
            step(X[rows], Y[rows])
            if number < n_calls:
                same(model.values(), before, rtol=0)
        before = model.values()
        same(before, params)
    assert counter.get_value() == 2


def test_calls_of_a_step_go_on_from_a_checkpoint(tmp_path):
    one, other = Regression(), Regression()
    steps = [model.step(updates.accumulated(updates.adam, 2), learning_rate=0.05) for model in (one, other)]
    steps[0](X[:3], Y[:3])
    checkpoint.save(tmp_path / "half.ckpt", steps[0])
    checkpoint.load(tmp_path / "half.ckpt", steps[1])
    for step in steps:
        step(X[3:], Y[3:])
    same(other.values(), one.values(), rtol=0)
    assert not np.array_equal(one.values()["W"], START["W"])


@pytest.mark.parametrize("wrap", [updates.clipped, updates.clipped_by_value])
def test_clipping_outside_is_refused(wrap):
    model = Regression()
    rule = wrap(updates.accumulated(updates.sgd, 2), 1.0)
    with pytest.raises(ValueError, match="put accumulated outermost"):
        rule(model.loss, model.params, learning_rate=0.1)


def with_momentum(rule):
    return lambda loss, params, **options: updates.apply_momentum(rule(loss, params, **options), params)


@pytest.mark.parametrize(
    ("wrap", "inner", "outermost"),
    [
        (lambda rule: updates.decayed(rule, 0.1), lambda rule: updates.accumulated(rule, 2), "accumulated"),
        (updates.averaged, lambda rule: updates.accumulated(rule, 2), "accumulated"),
        (lambda rule: updates.decayed(rule, 0.1), updates.averaged, "averaged"),
        (with_momentum, lambda rule: updates.accumulated(rule, 2), "accumulated"),
    ],
)
def test_what_changes_a_step_that_is_taken_already_is_refused(wrap, inner, outermost):
    model, options = Regression(), {"learning_rate": 0.1}
    with pytest.raises(ValueError, match=f"comes too late, .*: put {outermost} outermost"):
        wrap(inner(updates.sgd))(model.loss, model.params, **options)
    inner(wrap(updates.sgd))(model.loss, model.params, **options)


# --- clipped elements ------------------------------------------------------------------------------


def test_elements_are_clipped_after_the_norm(module_ranks):
    model = Regression()
    rule = updates.clipped(updates.clipped_by_value(updates.sgd, 0.05), 0.3)
    step = model.step(rule, learning_rate=0.1)

    def both(params):
        found = gradients(params)
        norm = np.sqrt(sum((g**2).sum() for g in found.values()))
        return {name: np.clip(g * min(1, 0.3 / norm), -0.05, 0.05) for name, g in found.items()}

    for params in followed(sgd, [both] * 3, learning_rate=0.1):
        step(X, Y)
        same(model.values(), params)
    assert "live once" in "\n".join(step.explanation())


def test_the_order_of_both_does_not_matter():
    one, other = Regression(), Regression()
    rules = [
        updates.clipped(updates.clipped_by_value(updates.sgd, 0.05), 0.3),
        updates.clipped_by_value(updates.clipped(updates.sgd, 0.3), 0.05),
    ]
    for model, rule in zip((one, other), rules, strict=True):
        model.step(rule, learning_rate=0.1)(X, Y)
    same(one.values(), other.values(), rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: updates.averaged(updates.sgd, 1), ValueError, r"decay=1 is outside \[0, 1\)"),
        (lambda: updates.accumulated(updates.sgd, 0), ValueError, "n_calls=0 is less than 1"),
        (lambda: updates.accumulated(updates.sgd, 1.5), TypeError, "n_calls=1.5 is not an integer"),
        (lambda: updates.clipped_by_value(updates.sgd, 0), ValueError, "limit=0 is not positive"),
        (lambda: updates.decayed(updates.sgd, [1.0]), ValueError, "weight_decay has 1 dimensions"),
    ],
)
def test_what_is_out_of_range_is_named(make, error, said):
    with pytest.raises(error, match=said):
        make()
