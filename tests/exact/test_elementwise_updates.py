"""Updates are read as a rule for vectors; its values on any part are those of the rule as it is written."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from synk.exact.elementwise_updates import along
from synk.exact.rule_graphs import NotElementwise
from synk.extensions import updates
from synk.extensions.gradients import flat_gradient, reduced

PLAIN = Mode("py", None)
SHAPES = [(3, 2), (4,), (), (1, 5)]
SIZES = [6, 4, 1, 5]
LENGTH = sum(SIZES)
NO_RATE = ("adam", "adamw", "amsgrad", "adamax", "adadelta")
RULES = ["sgd", "momentum", "nesterov_momentum", "rmsprop", "adagrad", *NO_RATE]


def parameters(dtype="float64"):
    random = np.random.default_rng(3)
    return [
        pytensor.shared(np.asarray(random.normal(size=shape), dtype), name=f"p{k}")
        for k, shape in enumerate(SHAPES)
    ]


def made(rule, params=None, **options):
    """Return what a rule makes of a loss, whose gradients do not matter here."""
    params = parameters() if params is None else params
    return rule(sum(pt.sum(pt.sqr(p)) for p in params), params, **options)


def rule_of(name):
    return made(getattr(updates, name), **({} if name in NO_RATE else {"learning_rate": 0.1}))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_computes_on_any_part_what_is_written_for_each_parameter(name):
    random = np.random.default_rng(5)
    written = rule_of(name)
    flat = written.flat_gradient
    flat.set_value(np.append(random.normal(size=LENGTH), 2.0))
    for variable, _ in written.param_updates:
        if variable.type.dtype == "float64" and variable.get_value().size:
            variable.set_value(random.random(variable.get_value().shape))
    rule = along(written.param_updates, flat)
    vectors = [
        np.concatenate([place.variable.get_value().reshape(-1) for place in places]) for places in rule.places
    ]
    assert [place.start for place in rule.places[0]] == list(np.cumsum([0, *SIZES[:-1]]))
    inputs = [*rule.vectors, rule.total, rule.weight]
    compute = pytensor.function(inputs, list(rule.values), mode=PLAIN)
    parts = []
    for start, stop in ((0, 3), (3, 11), (11, LENGTH)):
        given = [one[start:stop] for one in (*vectors, flat.get_value()[:-1])]
        parts.append(compute(*given, 2.0))
    whole = pytensor.function([], [value for _, value in written.param_updates], mode=PLAIN)()
    expected = {variable: value for (variable, _), value in zip(written.param_updates, whole, strict=True)}
    for places, got in zip(rule.places, map(np.concatenate, zip(*parts, strict=True)), strict=True):
        for place, size in zip(places, SIZES, strict=True):
            # The same operations on the same numbers; only vectors may be computed several at a time.
            np.testing.assert_allclose(
                got[place.start : place.start + size], expected[place.variable].reshape(-1), rtol=1e-15
            )


def test_what_no_gradient_changes_is_left_to_every_rank():
    written = rule_of("adam")
    rule = along(written.param_updates, written.flat_gradient)
    assert [variable.name for variable, _ in rule.others] == ["t"]
    named = [{place.variable.name.split("_")[-1] for place in places} for places in rule.places]
    assert named == [{"mean"}, {"square"}, {f"p{k}" for k in range(4)}] or len(rule.vectors) == 3


def lars(loss, params, learning_rate=0.1):
    """Scale each parameter's step by norms: it needs all elements of the parameter."""
    plain = updates.sgd(loss, params, learning_rate)
    pairs = [(p, p + (new - p) * pt.sqrt(pt.sum(pt.sqr(p)))) for p, new in plain.param_updates]
    return plain._replace(param_updates=pairs)


def other_rates(loss, params):
    """Give the second parameter another learning rate."""
    flat, expression, gradients = flat_gradient(loss, params)
    pairs = [(p, p - rate * g) for p, g, rate in zip(params, gradients, (0.1, 0.2, 0.1, 0.1), strict=True)]
    return updates.Updates([(flat, expression, "sum")], pairs, flat)


def transposed(loss, params):
    flat, expression, gradients = flat_gradient(loss, params)
    pairs = [
        (p, p - (g.T.reshape(p.shape) if p.ndim == 2 else g)) for p, g in zip(params, gradients, strict=True)
    ]
    return updates.Updates([(flat, expression, "sum")], pairs, flat)


def with_neighbours(loss, params):
    flat, expression, gradients = flat_gradient(loss, params)
    pairs = [(p, p - g * params[2]) for p, g in zip(params, gradients, strict=True)]
    return updates.Updates([(flat, expression, "sum")], pairs, flat)


def with_own_rates(loss, params):
    flat, expression, gradients = flat_gradient(loss, params)
    rates = [pytensor.shared(np.full(p.get_value().shape, 0.1), name="rates") for p in params]
    pairs = [(p, p - g * rate) for p, g, rate in zip(params, gradients, rates, strict=True)]
    return updates.Updates([(flat, expression, "sum")], pairs, flat)


def with_one_frozen(loss, params):
    plain = updates.sgd(loss, params, 0.1)
    return plain._replace(param_updates=plain.param_updates[:-1])


def with_the_norm(loss, params):
    plain = updates.sgd(loss, params, 0.1)
    norm = pytensor.shared(0.0, name="norm")
    return plain._replace(param_updates=[*plain.param_updates, (norm, pt.sum(pt.sqr(params[0])))])


def with_the_largest(loss, params):
    """Divide all gradients by the largest element."""
    flat, expression, gradients = flat_gradient(loss, params)
    largest = abs(reduced(flat)[:-1]).max()
    return updates.Updates(
        [(flat, expression, "sum")],
        [(p, p - g / largest) for p, g in zip(params, gradients, strict=True)],
        flat,
    )


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_norms_are_added_up_part_by_part(limit):
    written = made(updates.clipped(updates.momentum, limit), learning_rate=0.1)
    flat = written.flat_gradient
    flat.set_value(np.append(np.random.default_rng(5).normal(size=LENGTH), 2.0))
    rule = along(written.param_updates, flat)
    total = flat.get_value()[:-1]
    add_up = pytensor.function([rule.total, rule.weight], list(rule.partial_sums), mode=PLAIN)
    sums = [sum(parts) for parts in zip(add_up(total[:3], 2.0), add_up(total[3:], 2.0), strict=True)]
    np.testing.assert_allclose(sums, [np.sum((total / 2) ** 2)])
    compute = pytensor.function(
        [*rule.vectors, rule.total, rule.weight, *rule.sums], list(rule.values), mode=PLAIN
    )
    vectors = [
        np.concatenate([one.variable.get_value().reshape(-1) for one in places]) for places in rule.places
    ]
    got = dict(
        zip(
            [places[0].variable.name.split("_")[-1] for places in rule.places],
            compute(*vectors, total, 2.0, *sums),
            strict=True,
        )
    )
    gradient = total / 2 / max(1, np.linalg.norm(total / 2) / limit)
    np.testing.assert_allclose(got["velocity"], -0.1 * gradient, rtol=1e-12)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (lars, "Sum"),
        (other_rates, "'p1' is updated by another rule than 'p0'"),
        (transposed, "is not elementwise"),
        (with_neighbours, "is computed from several parameters"),
        (with_own_rates, "'rates' is an array"),
        (with_one_frozen, "elements 11:16 of 'flat_gradient' update nothing"),
        (with_the_norm, "'norm' has not as many elements as its gradient"),
        (updates.clipped(updates.clipped(updates.adam, 1.0), 0.5), "adds up what depends on other sums"),
        (with_the_largest, "needs all elements of 'flat_gradient'"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_rule_that_is_not_elementwise_is_refused_with_the_reason(rule, reason):
    written = made(rule)
    with pytest.raises(NotElementwise, match=reason):
        along(written.param_updates, written.flat_gradient)


def test_a_moving_average_of_a_parameter_moves_along_it():
    params = parameters()
    plain = made(updates.sgd, params, learning_rate=0.1)
    averages = [pytensor.shared(np.zeros(p.get_value().shape), name="average") for p in params]
    pairs = [(a, 0.9 * a + 0.1 * new) for a, (_, new) in zip(averages, plain.param_updates, strict=True)]
    rule = along([*pairs, *plain.param_updates], plain.flat_gradient)
    assert [len(places) for places in rule.places] == [4, 4]
    before = [0.9 * a + 0.1 * p for a, p in zip(averages, params, strict=True)]
    rule = along([*zip(averages, before, strict=True), *plain.param_updates], plain.flat_gradient)
    assert [len(places) for places in rule.places] == [4, 4]


def test_a_vector_that_nothing_reads_is_refused():
    written = rule_of("sgd")
    other = pytensor.shared(np.zeros(LENGTH + 1), name="other")
    with pytest.raises(NotElementwise, match="no update reads the sum of 'other'"):
        along([(pytensor.shared(1.0, name="t"), pt.constant(2.0))], other)
    unmarked = [(p, p - written.flat_gradient[:1].sum()) for p, _ in written.param_updates]
    with pytest.raises(NotElementwise, match="needs all elements"):
        along(unmarked, written.flat_gradient)
    assert reduced(written.flat_gradient) is reduced(written.flat_gradient)
