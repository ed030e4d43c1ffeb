"""Steps on several ranks against the same steps in one process."""

import functools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from support.slow import slow
from synk.extensions import batches, updates
from synk.extensions.gradients import global_norm
from synk.extensions.train import make_train_function, split_updates

N_RANKS = 3
N_ROWS = 37
RULES = ["sgd", "nesterov_momentum", "rmsprop", "adadelta", "adam", "amsgrad", "adamw", "adamax"]
PLAIN = Mode("py", None)  # the reference: graphs as they are written
same = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


class Model:
    """One hidden layer, with a running mean of the hidden activity."""

    def __init__(self, dtype="float64"):
        random = np.random.default_rng(1)
        self.x, self.y = pt.matrix("x", dtype=dtype), pt.vector("y", dtype=dtype)
        self.W = pytensor.shared(random.normal(size=(4, 5)).astype(dtype), name="W")
        self.v = pytensor.shared(random.normal(size=5).astype(dtype), name="v")
        self.mean = pytensor.shared(np.zeros(5, dtype), name="mean")
        self.hidden = pt.tanh(self.x @ self.W)
        self.loss = pt.sqr(self.hidden @ self.v - self.y).mean()
        self.params = [self.W, self.v]
        keep, take = (np.asarray(value, dtype) for value in (0.9, 0.1))
        self.running = [(self.mean, keep * self.mean + take * self.hidden.mean(0))]

    def values(self):
        return [variable.get_value() for variable in (*self.params, self.mean)]

    def step_alone(self, rule, **options):
        """One process: gradient of the whole batch, then the rule; running statistics beside."""
        made = rule(self.loss, self.params, **options)
        gradient = pytensor.function(
            [self.x, self.y],
            self.loss,
            updates=[made.grad_updates[0][:2], *self.running],
            mode=PLAIN,
        )
        update = pytensor.function([], updates=made.param_updates, mode=PLAIN)

        def step(x, y):
            loss = gradient(x, y)
            update()
            return loss

        return step

    def step_on_ranks(self, rule, **options):
        options = {"updates": self.running, **options}
        return make_train_function(self.loss, self.params, [self.x, self.y], rule, **options)


def same_values(one, other):
    for mine, expected in zip(one.values(), other.values(), strict=True):
        same(mine, expected)


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(2)
    return random.normal(size=(N_ROWS, 4)), random.normal(size=N_ROWS)


def options_of(rule):
    return {"learning_rate": 0.05} if rule in ("sgd", "nesterov_momentum") else {}


@pytest.mark.parametrize("rule", ["adagrad", *map(slow, RULES)])
def test_steps_equal_those_of_one_process(module_ranks, data, rule):
    """Batches of 10, 10, 10 and 7 rows: uneven over three ranks."""
    alone, spread, options = Model(), Model(), options_of(rule)
    step_alone = alone.step_alone(getattr(updates, rule), **options)
    step = spread.step_on_ranks(getattr(updates, rule), **options)
    x, y = step.build_inputs(*data)
    for batch in batches(N_ROWS, 10, seed=1):
        same(step(x, y, batch=batch), step_alone(data[0][batch], data[1][batch]))
    same_values(spread, alone)
    for variable in (*spread.params, spread.mean):
        assert [value.tobytes() for value in synk.gather(variable)] == [
            variable.get_value().tobytes()
        ] * module_ranks


def test_a_random_state_that_nothing_advances_is_told(module_ranks):
    model, state = Model(), pytensor.shared(np.random.default_rng(0), name="state")
    advanced, noise = pt.random.normal(size=(), rng=state, return_next_rng=True)
    make = functools.partial(
        make_train_function, model.loss + noise, model.params, [model.x, model.y], updates.sgd
    )
    make(learning_rate=0.1, updates={state: advanced})
    with pytest.warns(synk.SynkWarning, match="draws from state, which no update advances"):
        make(learning_rate=0.1)


def test_a_rule_is_a_function_and_parameters_may_be_a_dict(module_ranks):
    model = Model()
    named = {param.name: param for param in model.params}
    step = make_train_function(model.loss, named, [model.x, model.y], updates.sgd, learning_rate=0.1)
    assert [variable.name for variable in step.state] == ["W", "v"]
    with pytest.raises(TypeError, match="update_rule='adam' is no rule"):
        make_train_function(model.loss, named, [model.x, model.y], "adam")


def test_one_parameter_output_or_rate_that_is_given_is_a_list_of_one(module_ranks, data):
    model, rate = Model(), pt.scalar("rate", dtype="float64")
    step = make_train_function(
        model.loss,
        model.v,
        [model.x, model.y],
        updates.sgd,
        learning_rate=rate,
        bcast_inputs=rate,
        outputs=(abs(model.hidden).max(), "max"),
    )
    assert step.parts.params == [model.v]
    hidden, v = np.tanh(data[0] @ model.W.get_value()), Model().v.get_value()
    same(step(*data, 0.1), [np.mean((hidden @ v - data[1]) ** 2), abs(hidden).max()])
    same(model.v.get_value(), v - 0.1 * 2 * hidden.T @ (hidden @ v - data[1]) / N_ROWS)


@pytest.mark.parametrize(
    ("n_rows", "num_slices", "all_reduce"),
    [(N_ROWS, 4, "avg"), slow(N_ROWS, 1, "sum"), slow(2, 1, "sum"), slow(2, 1, "avg")],
)
def test_gradients_are_clipped_by_the_norm_over_all_rows(module_ranks, data, n_rows, num_slices, all_reduce):
    """Uneven shards, slices, a rank without rows: the step is that of NumPy on the whole batch."""
    x, y = data[0][:n_rows], data[1][:n_rows]
    features, target = pt.matrix("features", dtype="float64"), pt.vector("target", dtype="float64")
    w, b = pytensor.shared(np.ones(4), name="w"), pytensor.shared(np.asarray(2.0), name="b")
    loss = pt.sqr(features @ w + b - target).mean()
    residuals = x @ np.ones(4) + 2 - y
    gradients = 2 * x.T @ residuals / n_rows, 2 * residuals.mean()
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))

    made = updates.clipped(updates.sgd, norm / 3)(loss, [w, b], learning_rate=0.1)
    seen = pytensor.shared(np.asarray(0.0), name="seen")
    gradient = synk.function([features, target], loss, updates=made.grad_updates)
    update = synk.function([], updates=[*made.param_updates, (seen, global_norm(made.flat_gradient))])
    gradient(x, y, num_slices=num_slices)
    synk.all_reduce(made.flat_gradient, all_reduce)
    update()
    same(w.get_value(), 1 - 0.1 * gradients[0] / 3)
    same(b.get_value(), 2 - 0.1 * gradients[1] / 3)
    same(seen.get_value(), norm)
    for variable in (w, b, seen):
        assert len({value.tobytes() for value in synk.gather(variable)}) == 1


@pytest.mark.parametrize("rule", ["nesterov_momentum", slow("adam")])
def test_clipped_steps_equal_those_of_one_process(module_ranks, data, rule):
    alone, spread, options = Model(), Model(), options_of(rule)
    clipped = updates.clipped(getattr(updates, rule), 0.3)
    step_alone, step = alone.step_alone(clipped, **options), spread.step_on_ranks(clipped, **options)
    for batch in batches(N_ROWS, 10, seed=1):
        same(step(*data, batch=batch), step_alone(data[0][batch], data[1][batch]))
    same_values(spread, alone)


def test_float32_stays_float32_and_short_gradients_keep_their_bits(module_ranks, data):
    values, dtype = [], "float32"
    for rule in (updates.sgd, updates.clipped(updates.sgd, 1e3)):
        model = Model(dtype)
        step = model.step_on_ranks(rule, learning_rate=0.05)
        for _ in range(2):
            loss = step(*(array.astype(dtype) for array in data))
        assert loss.dtype == dtype
        values.append(model.values())
    for plain, clipped in zip(*values, strict=True):
        assert clipped.dtype == dtype
        assert clipped.tobytes() == plain.tobytes()


def test_any_rows_and_slices_give_the_same_step(module_ranks, data):
    alone, spread, options = Model(), Model(), {"learning_rate": 0.05}
    step_alone, step = alone.step_alone(updates.sgd, **options), spread.step_on_ranks(updates.sgd, **options)
    for n_rows in (1, 2, 37):
        x, y = data[0][:n_rows], data[1][:n_rows]
        for num_slices in (1, 1, 5, 5):
            told = f"{n_rows} rows in {num_slices} slices"
            same(step(x, y, num_slices=num_slices), step_alone(x, y), err_msg=told)
        same_values(spread, alone)


def test_outputs_follow_the_loss(module_ranks, data):
    model = Model()
    outputs = [model.hidden.mean(), (model.hidden, "gather")]
    step = model.step_on_ranks(updates.sgd, learning_rate=0.0, updates=(), outputs=outputs)
    hidden = np.tanh(data[0] @ model.W.get_value())
    loss, mean, gathered = step(*data)
    same([loss, mean], [np.mean((hidden @ model.v.get_value() - data[1]) ** 2), hidden.mean()])
    same(gathered, hidden)


@pytest.mark.slow
def test_the_learning_rate_may_be_a_broadcast_variable(module_ranks, data):
    fixed, shared = Model(), Model()
    rate = pytensor.shared(0.5, name="rate")
    step = shared.step_on_ranks(updates.sgd, learning_rate=rate)
    synk.broadcast(rate, 0.05)
    same(step(*data), fixed.step_alone(updates.sgd, learning_rate=0.05)(*data))
    same(shared.W.get_value(), fixed.W.get_value())


@pytest.mark.slow
def test_sliceable_variables_may_hold_the_data(module_ranks, data):
    alone, spread = Model(), Model()
    xs, ys = (pytensor.shared(array, name=name) for array, name in zip(data, "xy", strict=True))
    step = make_train_function(
        spread.loss,
        spread.params,
        [],
        updates.sgd,
        learning_rate=0.05,
        updates=spread.running,
        givens=[(spread.x, xs), (spread.y, ys)],
        sliceable_shareds=[xs, ys],
    )
    synk.scatter([xs, ys], list(data))
    same(step(num_slices=2), alone.step_alone(updates.sgd, learning_rate=0.05)(*data))
    same_values(spread, alone)


@pytest.mark.slow
def test_counters_random_states_and_floats_with_an_operation_are_left_to_the_ranks(module_ranks, data):
    """With "max", each rank keeps what is largest in its own rows."""
    model = Model()
    largest = pytensor.shared(0.0, name="largest")
    count = pytensor.shared(np.asarray(0), name="count")
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    next_rng, noise = pt.random.normal(size=(model.x.shape[0],), rng=rng, return_next_rng=True)
    step = make_train_function(
        model.loss + 0 * noise.mean(),
        model.params,
        [model.x, model.y],
        updates.sgd,
        updates=[(count, count + 1), (rng, next_rng), (largest, model.y.max(), "max")],
        learning_rate=0.01,
    )
    for _ in range(3):
        step(*data, num_slices=2)
    assert [int(value) for value in synk.gather(count)] == [3] * N_RANKS
    one, other = (synk.get_value(rank, rng).bit_generator.state for rank in range(2))
    assert one != other
    same(synk.gather(largest), [rows.max() for rows in np.array_split(data[1], N_RANKS)])


@pytest.mark.slow
def test_a_float_may_follow_from_itself_alone(module_ranks, data):
    model = Model()
    rate = pytensor.shared(0.5, name="rate")
    step = model.step_on_ranks(updates.sgd, learning_rate=rate, updates=[(rate, rate * 0.9)])
    for n_rows in (N_ROWS, 2):  # two rows leave a rank without
        step(*data, batch=n_rows)
    same(synk.gather(rate), [0.5 * 0.9**2] * N_RANKS)


@pytest.mark.slow
def test_statistics_of_two_dtypes_keep_theirs(module_ranks, data):
    model = Model()
    single = pytensor.shared(np.zeros(4, "float32"), name="single")
    step = model.step_on_ranks(
        updates.sgd, updates=[*model.running, (single, model.x.mean(0).astype("float32"))], learning_rate=0.01
    )
    step(*data, num_slices=2)
    assert single.get_value().dtype == "float32"
    np.testing.assert_allclose(single.get_value(), data[0].mean(0), rtol=1e-5)
    same(model.mean.get_value(), 0.1 * np.tanh(data[0] @ Model().W.get_value()).mean(0))


def test_updates_of_parameters_and_unused_inputs_are_refused(module_ranks):
    model = Model()
    with pytest.raises(ValueError, match="'W' is updated twice"):
        model.step_on_ranks(updates.adam, updates=[(model.W, model.W * 0.9)])
    with pytest.raises(ValueError, match="'stray' is not used"):
        model.step_on_ranks(updates.sgd, bcast_inputs=[pt.vector("stray")], learning_rate=0.1)


def test_floats_without_another_operation_are_averaged_and_the_rest_is_local():
    model, count = Model(), pytensor.shared(np.asarray(0), name="count")
    for operation in [(), (None,), ("avg",)]:
        averaged, local = split_updates([(model.mean, model.mean * 2, *operation), (count, count + 1)])
        assert [[variable for variable, _ in part] for part in (averaged, local)] == [[model.mean], [count]]
    for operation in ("sum", "max", "min", "prod"):
        averaged, local = split_updates([(model.mean, model.mean * 2, operation)])
        assert (averaged, local[0][2]) == ([], operation)
