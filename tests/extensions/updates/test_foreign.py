"""Rules that were written for one process, as they are and by `distributed`, against one process."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random import shared_rng

import synk
from support import foreign_rules
from support.processes.of_rank import runs_of, same_on_all
from support.slow import slow
from synk.extensions import updates
from synk.extensions.train import make_train_function

module_ranks = runs_of(3, later=[1, 2])

RANDOM = np.random.default_rng(4)
X, Y = RANDOM.normal(size=(7, 3)), RANDOM.normal(size=(7, 2))
BATCHES = [7, 7, 5, 2, 1]  # rows; of two and of one, ranks are without any
W, B = RANDOM.normal(size=(3, 2)), RANDOM.normal(size=2)


ROWS = [pt.tensor("x", shape=(None, 3), dtype="float64"), pt.tensor("y", shape=(None, 2), dtype="float64")]


class Model:
    """A layer and its loss, which is no sum over rows."""

    def __init__(self):
        self.inputs = ROWS
        self.params = [
            pytensor.shared(W, name="W", shape=W.shape),
            pytensor.shared(B, name="b", shape=B.shape),
        ]
        x, y = self.inputs
        W_, b = self.params
        self.loss = pt.sqrt(((pt.tanh(x @ W_ + b) - y) ** 2).mean())

    def values(self):
        return [param.get_value() for param in self.params]

    def follow(self, step):
        losses = [float(step(X[:n], Y[:n])) for n in BATCHES]
        return [losses, *self.values()]


def alone(rule):
    model = Model()
    step = pytensor.function(
        model.inputs, model.loss, updates=rule(model.loss, model.params), mode="FAST_COMPILE"
    )
    return model.follow(step)


def compare(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


SOON = [foreign_rules.total_norm]
RULES = [rule if rule in SOON else slow(rule) for rule in foreign_rules.RULES]
MORE = [slow(rule) for rule in (foreign_rules.polyak, foreign_rules.newton)]


@pytest.mark.parametrize("rule", [*RULES, *MORE], ids=lambda rule: rule.__name__)
def test_a_rule_of_somebody_else_needs_no_help(module_ranks, rule):
    """Also one that reads the loss, or derives its gradient again: a function is exact for any graph."""
    model = Model()
    step = synk.function(model.inputs, model.loss, updates=rule(model.loss, model.params))
    compare(model.follow(step), alone(rule))
    for param in model.params:
        same_on_all(param, module_ranks)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_distributed_rules_make_the_same_steps(module_ranks, rule):
    model = Model()
    step = make_train_function(model.loss, model.params, model.inputs, updates.distributed(rule))
    compare(model.follow(step), alone(rule))
    assert set(model.params) <= set(step.state)


def test_elementwise_ones_get_the_divided_update_by_themselves(module_ranks):
    model = Model()
    rule = updates.distributed(foreign_rules.rprop)
    step = make_train_function(model.loss, model.params, model.inputs, rule)
    said = "\n".join(step.explanation())
    assert "live once" in said
    compare(model.follow(step), alone(foreign_rules.rprop))


@pytest.mark.slow
def test_options_and_clipping_reach_the_rule(module_ranks):
    one, other = Model(), Model()
    rules = [updates.distributed(foreign_rules.adam), updates.adam]
    steps = [
        make_train_function(
            model.loss,
            model.params,
            model.inputs,
            updates.clipped(rule, 0.1),
            learning_rate=0.02,
            epsilon=0.0,
        )
        for model, rule in zip((one, other), rules, strict=True)
    ]
    compare(one.follow(steps[0]), other.follow(steps[1]))


def drawing(loss, params):
    rng = shared_rng(np.random.default_rng(0), name="noise")
    new_rng, noise = rng.normal(size=(3, 2))
    return {params[0]: params[0] + noise, rng: new_rng}


def by_rows(loss, params):
    return {params[0]: params[0] - pytensor.grad(loss, params[0]) * ROWS[0].sum()}


@pytest.mark.parametrize(
    ("rule", "error", "said"),
    [
        (foreign_rules.polyak, ValueError, "polyak reads the value of the loss, .*synk.function"),
        (foreign_rules.newton, ValueError, "newton derives the gradient again"),
        (drawing, ValueError, r"drawing draws from \['noise'\], and each rank would draw its own"),
        (by_rows, ValueError, r"by_rows reads \['x'\], inputs of the loss"),
        (updates.sgd, TypeError, "sgd is a rule of synk.extensions.updates already"),
        (lambda loss, params: None, TypeError, "returns None, no updates; return a dict, or pairs"),
        (lambda loss, params: [], TypeError, "returns no updates"),
        (lambda loss, params: [(loss, loss)], TypeError, "not a pair; return"),
    ],
)
def test_what_it_cannot_serve_is_named(rule, error, said):
    model = Model()
    options = {"learning_rate": 0.1} if rule is updates.sgd else {}
    with pytest.raises(error, match=said):
        updates.distributed(rule)(model.loss, model.params, **options)


def test_a_rule_of_one_process_is_told_where_it_belongs():
    model = Model()
    with pytest.raises(
        TypeError, match="returns a OrderedDict, as rules of one process do; pass .*distributed"
    ):
        make_train_function(model.loss, model.params, model.inputs, foreign_rules.adam)


def test_a_term_of_a_number_is_no_value_of_the_loss():
    def decaying(loss, params):
        gradients = pytensor.grad(loss + 0.5 * sum(pt.sqr(p).sum() for p in params), params)
        return [(p, p - 0.1 * g) for p, g in zip(params, gradients, strict=True)]

    x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    step = make_train_function((w * x).mean(), [w], [x], updates.distributed(decaying))
    step([1.0, 3.0])  # a gradient of 2, and of 1 from the term
    assert w.get_value() == pytest.approx(0.7)
