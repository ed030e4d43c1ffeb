"""Rates against the formulas, and one count a step on every rank."""

from bisect import bisect_right
from math import cos, pi

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from support.slow import slow
from synk.extensions import schedules, updates
from synk.extensions.fit import Callback, ReduceOnPlateau, fit
from synk.extensions.train import make_train_function

N_RANKS = 2
N_ROWS = 21
PLAIN = Mode("py", None)  # graphs as they are written, which spares rewriting them


def rates(schedule, n_steps=30):
    """Return the rates of a schedule for the steps from 0 on."""
    t = pt.lscalar("t")
    rate = pytensor.function([t], schedule(t), mode=PLAIN, on_unused_input="ignore")
    values = [rate(step) for step in range(n_steps)]
    assert {value.dtype for value in values} == {np.dtype("float64")}
    return np.array(values)


def same(found, formula, rtol=1e-14):
    np.testing.assert_allclose(found, [formula(t) for t in range(len(found))], rtol=rtol, atol=1e-16)


def test_steps_as_of_torch_multi_step():
    """torch.optim.lr_scheduler.MultiStepLR: base * gamma ** bisect_right(milestones, t)."""
    found = rates(lambda t: schedules.steps(t, 0.3, {12: 0.1, 5: 0.1, 20: 0.1}))
    same(found, lambda t: 0.3 * 0.1 ** bisect_right([5, 12, 20], t))


def test_steps_with_factors_of_their_own():
    found = rates(lambda t: schedules.steps(t, 1.0, {2: 0.5, 4: 3.0}), 6)
    assert found.tolist() == [1, 1, 0.5, 0.5, 1.5, 1.5]
    assert rates(lambda t: schedules.steps(t, 0.3, {}), 3).tolist() == [0.3] * 3


@pytest.mark.parametrize("final", [0.0, 0.02])
def test_cosine_as_of_torch_annealing(final):
    """CosineAnnealingLR(T_max=24, eta_min=final); beyond T_max, torch's would rise again."""
    found = rates(lambda t: schedules.cosine(t, 0.3, 24, final=final))
    same(found, lambda t: final + (0.3 - final) * (1 + cos(pi * min(t, 24) / 24)) / 2)


def test_cosine_with_warm_up():
    found = rates(lambda t: schedules.cosine(t, 0.3, 24, warm_up=4, final=0.02))
    assert found[:5] == pytest.approx([0.06, 0.12, 0.18, 0.24, 0.3], rel=1e-14)
    same(found[4:], lambda t: 0.02 + 0.28 * (1 + cos(pi * min(t, 20) / 20)) / 2)


@pytest.mark.parametrize("n_steps", [0, 1, 7])
def test_warm_up_as_of_torch_linear(n_steps):
    """torch's LinearLR(start_factor=a, total_iters=n): a + (1 - a) * min(t, n) / n, from a = 1 / (n + 1)."""
    found = rates(lambda t: schedules.warm_up(t, 0.3, n_steps), 12)
    first = 1 / (n_steps + 1)
    same(found, lambda t: 0.3 * (first + (1 - first) * (min(t, n_steps) / n_steps if n_steps else 1)))


def test_warm_up_from_another_start():
    found = rates(lambda t: schedules.warm_up(t, 1.0, 3, start=0.2), 5)
    assert found == pytest.approx([0.4, 0.6, 0.8, 1, 1], rel=1e-14)


@pytest.mark.parametrize("power", [1.0, 0.9, 2])
def test_polynomial_as_of_torch(power):
    """torch's PolynomialLR(total_iters=20), from and to other rates than 1 and 0."""
    found = rates(lambda t: schedules.polynomial(t, 0.3, 20, power=power, final=0.02))
    same(found, lambda t: 0.02 + 0.28 * (1 - min(t, 20) / 20) ** power, rtol=1e-13)


def test_one_cycle_follows_its_formula():
    """With the peak at step 6 of 24, and defaults of the other two rates."""
    found = rates(lambda t: schedules.one_cycle(t, 0.5, 25, rising=0.25))
    first, final = 0.02, 0.02e-4

    def formula(t):
        if t < 6:
            return first + (0.5 - first) * (1 - cos(pi * t / 6)) / 2
        return final + (0.5 - final) * (1 + cos(pi * (min(t, 24) - 6) / 18)) / 2

    same(found, formula, rtol=1e-12)
    assert found[0] == pytest.approx(first)
    assert found.argmax() == 6


def test_piecewise_is_linear_interpolation():
    points = {0: 0.0, 4: 0.3, 5: 0.1, 20: 0.0}
    found = rates(lambda t: schedules.piecewise(t, dict(reversed(points.items()))))
    same(found, lambda t: np.interp(t, list(points), list(points.values())), rtol=1e-13)
    assert rates(lambda t: schedules.piecewise(t, {3: 0.2}), 6).tolist() == [0.2] * 6


def test_a_schedule_falls_by_a_metric_too(module_ranks, data):
    """What `ReduceOnPlateau` multiplies is a shared factor of the schedule, the same on all ranks."""
    model, factor = Model(), pytensor.shared(1.0, name="factor")
    rule, options = schedules.counting(updates.sgd, model.count), {"outputs": [(model.rate * factor, None)]}
    inputs = [model.x, model.y]
    step = make_train_function(
        model.loss, [model.w], inputs, rule, learning_rate=model.rate * factor, **options
    )
    plateau = ReduceOnPlateau(factor, metric="judged", factor=0.5, patience=1)
    means = iter([1.0, 1.0, 1.0])

    class Judged(Callback):
        last, adds = False, ("judged",)

        def on_epoch_end(self, training):
            training.metrics["judged"] = next(means)

    found = []

    class Seen(Callback):
        def on_step_end(self, training):
            found.append(float(training.outputs[1]))

    fit(step, data, epochs=3, batch_size=7, callbacks=[Judged(), plateau, Seen()], progress=False)
    plain = rates(lambda t: schedules.cosine(t, 0.2, 8, warm_up=2, final=0.01), 9)
    np.testing.assert_allclose(found, plain * np.repeat([1, 1, 0.5], 3), rtol=1e-12)


def test_schedules_are_made_of_schedules():
    found = rates(
        lambda t: schedules.scaled(schedules.warm_up(t, schedules.steps(t, 0.1, {4: 0.5}), 1), n_ranks=3), 6
    )
    assert found == pytest.approx([0.15, 0.3, 0.3, 0.3, 0.15, 0.15], rel=1e-14)


@pytest.mark.parametrize("peak", [np.float32(0.3), pytensor.shared(np.float32(0.3), name="peak")])
def test_arguments_may_be_shared_scalars(peak):
    for schedule in (
        lambda t: schedules.cosine(t, peak, 10),
        lambda t: schedules.warm_up(t, peak, 0),
        lambda t: schedules.steps(t, peak, {}),
    ):
        assert rates(schedule, 1).tolist() == [float(np.float32(0.3))]


def test_rates_do_not_depend_on_floatx():
    schedule = {"peak": 0.3, "n_steps": 24, "warm_up": 3, "final": 0.02}
    with pytensor.config.change_flags(floatX="float32"):
        found = rates(lambda t: schedules.cosine(t, **schedule))
    np.testing.assert_array_equal(found, rates(lambda t: schedules.cosine(t, **schedule)))


def test_counting_goes_on_where_float32_stops():
    t = pt.lscalar("t")
    rate = pytensor.function([t], schedules.warm_up(t, 1.0, 2**26), mode=PLAIN)
    assert rate(2**25) < rate(2**25 + 1)


# --- in a training step ----------------------------------------------------------------------------


class Model:
    """A linear model, its rate a schedule."""

    def __init__(self, dtype="float64"):
        random = np.random.default_rng(1)
        self.x, self.y = pt.matrix("x", dtype=dtype), pt.vector("y", dtype=dtype)
        self.w = pytensor.shared(random.normal(size=4).astype(dtype), name="w")
        self.loss = pt.sqr(self.x @ self.w - self.y).mean()
        self.count = schedules.counter()
        self.rate = schedules.cosine(self.count, 0.2, 8, warm_up=2, final=0.01)

    def step(self, rule, **options):
        return make_train_function(
            self.loss,
            [self.w],
            [self.x, self.y],
            schedules.counting(rule, self.count),
            learning_rate=self.rate,
            **options,
        )

    def step_at(self, rule):
        """One process, with the rate of each step given."""
        rate = pt.scalar("rate", dtype="float64")
        made = rule(self.loss, [self.w], learning_rate=rate)
        gradient = pytensor.function(
            [self.x, self.y],
            updates=[made.grad_updates[0][:2]],
            mode=PLAIN,
        )
        update = pytensor.function([rate], updates=made.param_updates, mode=PLAIN)

        def step(x, y, value):
            gradient(x, y)
            update(value)

        return step


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(2)
    return random.normal(size=(N_ROWS, 4)), random.normal(size=N_ROWS)


@pytest.mark.parametrize("rule", [updates.momentum, slow(updates.adamw)])
def test_steps_on_ranks_equal_those_of_one_process(module_ranks, data, rule):
    """Also with slices, and with one row, which leaves a rank without any."""
    alone, spread = Model(), Model()
    step_at, step = alone.step_at(rule), spread.step(rule)
    formula = rates(lambda t: schedules.cosine(t, 0.2, 8, warm_up=2, final=0.01), 10)
    for t, (n_rows, num_slices) in enumerate([(21, 1), (21, 3), (1, 1), (1, 2), (2, 5)] * 2):
        x, y = (array[:n_rows] for array in data)
        step(x, y, num_slices=num_slices)
        step_at(x, y, formula[t])
        assert [int(value) for value in synk.gather(spread.count)] == [t + 1] * module_ranks
        np.testing.assert_allclose(spread.w.get_value(), alone.w.get_value(), rtol=1e-10)
    first, *others = synk.gather(spread.w)
    assert all(other.tobytes() == first.tobytes() for other in others)


def test_parameters_keep_float32(module_ranks, data):
    model = Model("float32")
    step = model.step(updates.momentum)
    step(*(array.astype("float32") for array in data))
    assert model.w.get_value().dtype == np.float32
    assert int(model.count.get_value()) == 1


def test_the_rate_is_an_output_of_the_step(module_ranks, data):
    model = Model()
    step = model.step(updates.sgd, outputs=[(model.rate, None)])
    found = [float(step(*data, num_slices=2)[1]) for _ in range(4)]
    np.testing.assert_allclose(found, rates(lambda t: schedules.cosine(t, 0.2, 8, warm_up=2, final=0.01), 4))


@pytest.mark.slow
def test_an_update_beside_the_gradient_counts_once_too(module_ranks, data):
    """Before the parameters, though: the first rate is that of t = 1, as `counting` says."""
    alone, spread = Model(), Model()
    step = make_train_function(
        spread.loss,
        [spread.w],
        [spread.x, spread.y],
        updates.sgd,
        learning_rate=spread.rate,
        updates=[(spread.count, spread.count + 1)],
    )
    step(*data, num_slices=3)
    alone.step_at(updates.sgd)(*data, 0.2 * 2 / 3)
    assert [int(value) for value in synk.gather(spread.count)] == [1] * module_ranks
    np.testing.assert_allclose(spread.w.get_value(), alone.w.get_value(), rtol=1e-10)


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda t: schedules.counter(-1), ValueError, "start=-1 is less than 0"),
        (lambda t: schedules.counter(0.5), TypeError, "start=0.5 is not an integer"),
        (
            lambda t: schedules.cosine(3, 0.1, 10),
            TypeError,
            r"counter=3 is no scalar of integers; make it by",
        ),
        (lambda t: schedules.cosine(pt.dscalar(), 0.1, 10), TypeError, "is no scalar of integers"),
        (lambda t: schedules.steps(pt.lvector(), 0.1, {}), TypeError, "is no scalar of integers"),
        (
            lambda t: schedules.cosine(t, 0.1, 10, warm_up=10),
            ValueError,
            "warm_up=10 leaves none of n_steps=10",
        ),
        (lambda t: schedules.cosine(t, 0.1, 10.0), TypeError, "n_steps=10.0 is not an integer"),
        (lambda t: schedules.cosine(t, [0.1], 10), ValueError, "peak has 1 dimensions"),
        (lambda t: schedules.warm_up(t, pt.dvector(), 10), ValueError, "rate has 1 dimensions"),
        (lambda t: schedules.warm_up(t, 0.1, -2), ValueError, "n_steps=-2 is less than 0"),
        (lambda t: schedules.steps(t, 0.1, {0: 0.1}), ValueError, "a key of factors=0 is less than 1"),
        (lambda t: schedules.steps(t, 0.1, {3: [0.1]}), ValueError, r"factors\[3\] has 1 dimensions"),
        (lambda t: schedules.polynomial(t, 0.1, 0), ValueError, "n_steps=0 is less than 1"),
        (lambda t: schedules.one_cycle(t, 0.1, 1), ValueError, "n_steps=1 is less than 2"),
        (lambda t: schedules.one_cycle(t, 0.1, 9, rising=1), ValueError, "rising=1 is not between 0 and 1"),
        (lambda t: schedules.piecewise(t, {}), ValueError, "rates is empty"),
        (lambda t: schedules.piecewise(t, {-1: 0.1}), ValueError, "a key of rates=-1 is less than 0"),
        (lambda t: schedules.scaled(0.1, 0), ValueError, "n_ranks=0 is less than 1"),
        (lambda t: schedules.counting(updates.sgd, t), TypeError, "counter t is not a shared variable"),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(pt.lscalar("t"))
