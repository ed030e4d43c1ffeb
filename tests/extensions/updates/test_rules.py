"""Rules against their formulas in NumPy, and against torch; no run is open."""

import json
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors

from support.slow import slow
from support.update_rules import FORMULAS, adafactor
from synk.extensions import updates

REFERENCE = json.loads(Path(__file__).with_name("torch_reference.json").read_text())
N_STEPS = len(REFERENCE["rules"]["sgd"]["steps"])
PLAIN = Mode("py", None)  # of graphs that are computed a few times, rewriting takes longer than all else


NEED_RATE = {"sgd", "momentum", "nesterov_momentum", "lars"}
RULES = [formula.__name__ for formula in FORMULAS]
MEASURES = ["lars", "lamb", "adafactor"]  # whole parameters, by norms or means


class Regression:
    """Least squares on the data of the reference."""

    def __init__(self, dtype="float64"):
        self.x, self.y, W, b = (np.array(REFERENCE["problem"][name], dtype) for name in ("x", "y", "W", "b"))
        self.initial = {"W": W, "b": b}
        self.params = [pytensor.shared(W, name="W"), pytensor.shared(b, name="b")]
        self.inputs = [pt.matrix("x", dtype=dtype), pt.matrix("y", dtype=dtype)]
        x, y = self.inputs
        self.loss = pt.sqr(x @ self.params[0] + self.params[1] - y).mean()

    def gradients(self, W, b):
        residual = 2 * (self.x @ W + b - self.y) / self.y.size
        return {"W": self.x.T @ residual, "b": residual.sum(0)}

    def follow(self, rule, n_steps=N_STEPS, edges=(), **options):
        """Return the parameters after each step; batches are split at the rows `edges`."""
        made = getattr(updates, rule)(self.loss, self.params, **options)
        return [
            {param.name: param.get_value() for param in self.params} for _ in self.steps(made, n_steps, edges)
        ]

    def steps(self, made, n_steps, edges=()):
        """Add up the gradients of a mean over parts of the rows, as ranks and slices do, then update."""
        [(flat, expression, operation)] = made.grad_updates
        assert flat is made.flat_gradient
        assert operation == "sum"
        gradient = pytensor.function(self.inputs, expression, mode=PLAIN)
        update = pytensor.function([], updates=made.param_updates, mode=PLAIN)
        parts = list(zip(np.split(self.x, edges), np.split(self.y, edges), strict=True))
        for _ in range(n_steps):
            flat.set_value(sum(len(x) * gradient(x, y) for x, y in parts))
            update()
            yield


def follow_formula(formula, regression, **options):
    params, states, steps = dict(regression.initial), {"W": {}, "b": {}}, []
    for t in range(1, N_STEPS + 1):
        gradients = regression.gradients(**params)
        params = {name: formula(p, gradients[name], t, states[name], **options) for name, p in params.items()}
        steps.append(params)
    return steps


def assert_same(steps, expected, rtol=1e-10):
    for step, wanted in zip(steps, expected, strict=True):
        for name in ("W", "b"):
            np.testing.assert_allclose(step[name], wanted[name], rtol=rtol)


def options_of(rule):
    return {"learning_rate": 0.05} if rule in NEED_RATE else {}


@pytest.mark.parametrize("floatX", ["float32", slow("float64")])
@pytest.mark.parametrize("formula", FORMULAS, ids=RULES)
def test_rule_follows_its_formula_whatever_floatX_is(formula, floatX):
    regression, options = Regression(), options_of(formula.__name__)
    expected = follow_formula(formula, regression, **options)
    with pytensor.config.change_flags(floatX=floatX):
        assert_same(regression.follow(formula.__name__, **options), expected)


# Options whose defaults leave a term of the formula out; steps so long that gradients change their signs.
OTHER = {
    "lion": {"learning_rate": 0.4, "beta1": 0.6, "weight_decay": 0.3},
    "lars": {"learning_rate": 0.7, "momentum": 0.6, "weight_decay": 0.3, "trust": 0.2},
    "lamb": {"learning_rate": 0.3, "beta1": 0.5, "beta2": 0.8, "epsilon": 0.1, "weight_decay": 0.4},
    "adafactor": {"learning_rate": 0.3, "decay": 0.5, "threshold": 0.4, "epsilon1": 0.01, "epsilon2": 0.9},
}


@pytest.mark.parametrize("formula", [one for one in FORMULAS if one.__name__ in OTHER], ids=list(OTHER))
def test_options_enter_where_the_formula_has_them(formula):
    regression, options = Regression(), OTHER[formula.__name__]
    steps = follow_formula(formula, regression, **options)
    signs = [np.sign(regression.gradients(**params)["W"]) for params in [regression.initial, *steps]]
    assert (np.diff(signs, axis=0) != 0).any()
    assert_same(regression.follow(formula.__name__, **options), steps)


@pytest.mark.parametrize("rule", ["lars", "lamb"])
def test_a_weight_of_zeros_takes_steps_too(rule):
    """A rate in proportion to its norm would leave it at zero."""
    regression, options = Regression(), {"learning_rate": 0.05}
    regression.initial["W"] = np.zeros_like(regression.initial["W"])
    regression.params[0].set_value(regression.initial["W"])
    [formula] = [one for one in FORMULAS if one.__name__ == rule]
    steps = regression.follow(rule, **options)
    assert (steps[0]["W"] != 0).all()
    assert_same(steps, follow_formula(formula, regression, **options))


def test_adafactor_takes_filters_for_a_table_of_outputs():
    """All that belongs to one output is a row."""
    start = np.random.default_rng(0).normal(size=(2, 3, 2, 2))
    p = pytensor.shared(start, name="filters")
    made = updates.adafactor(pt.sqr(p).sum() / 2, [p], learning_rate=0.1)
    made.flat_gradient.set_value(np.append(start, 1.0))
    pytensor.function([], updates=made.param_updates, mode=PLAIN)()
    np.testing.assert_allclose(p.get_value(), adafactor(start, start, 1, {}, 0.1), rtol=1e-10)
    kept = {variable.name: variable.get_value().shape for variable, _ in made.param_updates}
    assert kept == {"t": (), "filters_rows": (2,), "filters_columns": (12,), "filters": start.shape}


@pytest.mark.parametrize("rule", REFERENCE["rules"])
def test_rule_follows_torch(rule):
    """Configured to agree: torch adds epsilon outside the root (Adagrad, RMSprop) or inside the maximum
    (Adamax), so there it is zero. torch's momentum multiplies the velocity by the learning rate instead of
    adding it up, which is the same while the rate is constant."""
    reference = REFERENCE["rules"][rule]
    assert_same(Regression().follow(rule, **reference["options"]), reference["steps"])


@pytest.mark.parametrize(
    "formula", [formula if formula.__name__ == "adam" else slow(formula) for formula in FORMULAS], ids=RULES
)
def test_float32_comes_close(formula):
    options = options_of(formula.__name__)
    steps = Regression("float32").follow(formula.__name__, **options)
    assert_same(steps, follow_formula(formula, Regression(), **options), rtol=2e-4)


@pytest.mark.parametrize("edges", [slow((2,)), slow((1, 5)), (1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("rule", [rule if rule == "momentum" else slow(rule) for rule in RULES])
def test_steps_do_not_depend_on_how_rows_are_split(rule, edges):
    whole = Regression().follow(rule, **options_of(rule))
    assert_same(Regression().follow(rule, edges=edges, **options_of(rule)), whole)


@pytest.mark.parametrize("ranks", [2, 5])
def test_all_reducing_by_avg_gives_the_step_of_sum(ranks):
    by_sum, by_avg = Regression(), Regression()
    for regression, divisor in ((by_sum, 1), (by_avg, ranks)):
        made = updates.sgd(regression.loss, regression.params, 0.1)
        made.flat_gradient.set_value(np.arange(1.0, 10.0) / divisor)
        pytensor.function([], updates=made.param_updates, mode=PLAIN)()
    for one, other in zip(by_sum.params, by_avg.params, strict=True):
        np.testing.assert_allclose(one.get_value(), other.get_value(), rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "floatX"),
    [
        ("float16", "float32"),
        slow("float32", "float64"),
        ("float64", "float32"),
        *(slow(dtype, dtype) for dtype in ("float32", "float64")),
        slow("float16", "float64"),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_params_and_state_keep_their_dtype(rule, dtype, floatX):
    regression = Regression(dtype)
    with pytensor.config.change_flags(floatX=floatX):
        rate = pytensor.shared(np.asarray(0.05, "float64"))
        made = getattr(updates, rule)(regression.loss, regression.params, learning_rate=rate * 0.5)
    assert made.flat_gradient.dtype == dtype
    for variable, new in made.param_updates:
        assert new.dtype == variable.dtype
        assert variable.ndim == 0 or variable.dtype == dtype
    arrays = [node for node in ancestors([new for _, new in made.param_updates]) if getattr(node, "ndim", 0)]
    # Norms and means of float16 are formed in float32, which takes no memory: they fuse with what they sum.
    wider = {"float32"} if dtype == "float16" and rule in MEASURES else set()
    assert {array.dtype for array in arrays if array.dtype.startswith("float")} == {dtype} | wider


def test_state_keeps_axes_of_length_one():
    column = pytensor.shared(np.ones((3, 1)), shape=(None, 1), name="column")
    made = updates.momentum(pt.sqr(column).mean(), [column], 0.1)
    assert all(variable.type.shape == (None, 1) for variable, _ in made.param_updates)


def test_learning_rate_may_be_shared_and_change():
    regression, fixed = Regression(), Regression()
    rate = pytensor.shared(0.1)
    made = updates.sgd(regression.loss, regression.params, rate)
    for step, _ in enumerate(regression.steps(made, 2)):
        rate.set_value(0.1 / (step + 2))
    for constant in (0.1, 0.05):
        list(fixed.steps(updates.sgd(fixed.loss, fixed.params, constant), 1))
    np.testing.assert_allclose(regression.params[0].get_value(), fixed.params[0].get_value(), rtol=1e-12)


def test_decay_rate_may_be_shared():
    shared, fixed = Regression(), Regression()
    rho = pytensor.shared(np.asarray(0.7, "float32"))
    steps = shared.follow("rmsprop", rho=rho)
    assert_same(steps, fixed.follow("rmsprop", rho=0.7), rtol=1e-6)


@pytest.mark.parametrize(("apply", "factor"), [("apply_momentum", 1.0), ("apply_nesterov_momentum", 1.5)])
def test_velocity_goes_on_top_of_any_rule(apply, factor):
    """From a velocity of zero, the first step is that of the rule, s; with look-ahead momentum * s more."""
    p = pytensor.shared(np.asarray([1.0, 2.0]), name="p")
    made = getattr(updates, apply)(updates.rmsprop(p.mean(), [p], 0.1, epsilon=0.0), [p], momentum=0.5)
    assert len(made.param_updates) == 3
    update = pytensor.function([], updates=made.param_updates, mode=PLAIN)
    made.flat_gradient.set_value(np.asarray([2.0, 8.0, 4.0]))
    s = 0.1 / np.sqrt(0.1)
    update()
    np.testing.assert_allclose(p.get_value(), [1 - factor * s, 2 - factor * s])


def test_momentum_of_a_variable_without_update_is_refused():
    regression, other = Regression(), pytensor.shared(1.0, name="other")
    made = updates.sgd(regression.loss, regression.params, 0.1)
    with pytest.raises(ValueError, match="'other' has no update"):
        updates.apply_momentum(made, [other])


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("sgd", {"learning_rate": [0.1, 0.2]}, "learning_rate has 1 dimensions"),
        ("sgd", {"learning_rate": pt.vector("rates")}, "learning_rate has 1 dimensions"),
        ("momentum", {"learning_rate": 0.1, "momentum": 1.5}, r"momentum=1.5 is outside \[0, 1\)"),
        ("adam", {"beta2": 1}, r"beta2=1 is outside \[0, 1\)"),
        ("rmsprop", {"rho": -0.1}, r"rho=-0.1 is outside \[0, 1\)"),
        ("lion", {"weight_decay": [0.1]}, "^weight_decay has 1 dimensions"),
        ("lars", {"learning_rate": 0.1, "weight_decay": [0.1]}, "^weight_decay has 1 dimensions"),
        ("adafactor", {"decay": 0}, "decay=0 is not positive"),
        ("adafactor", {"decay": pt.dscalar("d")}, "decay=d is no number; pass one, as decay stays the same"),
    ],
)
def test_options_out_of_range_are_named(rule, options, message):
    regression = Regression()
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(updates, rule)(regression.loss, regression.params, **options)


@pytest.mark.parametrize("rule", [rule if rule in ("sgd", "adam") else slow(rule) for rule in RULES])
def test_params_may_be_any_iterable_and_one_is_a_list_of_one(rule):
    regression, p = Regression(), pytensor.shared(np.arange(3.0), name="p")
    made = getattr(updates, rule)(regression.loss, iter(regression.params), learning_rate=0.1)
    assert {variable.name for variable, _ in made.param_updates} >= {"W", "b"}
    made = getattr(updates, rule)(pt.sqr(p).sum(), p, learning_rate=0.1)
    assert p in dict(made.param_updates)
    for apply in (updates.apply_momentum, updates.apply_nesterov_momentum):
        assert p in dict(apply(made, p).param_updates)


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), [1.0]])
def test_the_norm_to_clip_at_is_a_positive_number(max_norm):
    said = "max_norm has 1 dimensions" if max_norm == [1.0] else f"max_norm={max_norm} is not positive"
    with pytest.raises(ValueError, match=said):
        updates.clipped(updates.sgd, max_norm)


@pytest.mark.parametrize("rule", MEASURES)
def test_float16_weights_are_measured_in_float32(rule):
    """Their norm is 9,900 here, and the sum of their squares 98 million."""
    p = pytensor.shared(np.full((1000, 98), 31.6, "float16"), name="p")
    options = {"learning_rate": 0.25} | ({"trust": 1.0} if rule == "lars" else {})
    made = getattr(updates, rule)(pt.sum(p).astype("float16"), p, **options)
    made.flat_gradient.set_value(np.ones_like(made.flat_gradient.get_value()))
    pytensor.function([], updates=made.param_updates, mode=PLAIN)()
    np.testing.assert_allclose(p.get_value(), 0.75 * 31.6, rtol=2e-3)


def test_float16_gradients_are_measured_in_float32():
    """Their squares overflow at 256."""
    p = pytensor.shared(np.full(4, 100, "float16"), name="p")
    made = updates.clipped(updates.sgd, 10)((pt.sqr(p).sum() * 2).astype("float16"), p, learning_rate=1)
    flat, expression, _ = made.grad_updates[0]
    pytensor.function([], updates=[(flat, expression)], mode=PLAIN)()
    pytensor.function([], updates=made.param_updates, mode=PLAIN)()
    assert p.get_value().tolist() == [95.0] * 4
