"""Updates of which each rank computes a part: the bits of the sequence, whatever else uses the variables."""

from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of, same_on_all
from support.slow import slow
from synk.extensions import updates
from synk.extensions.gradients import global_norm
from synk.extensions.train import make_train_function
from synk.run.arrays.shared_storage import SharedStorage
from synk.run.session import current
from synk.values.errors import SharedMemoryFull

module_ranks = runs_of(2, later=[1, 3])

X = np.random.default_rng(1).normal(size=(7, 3)).astype("float32")
RULES = [
    "sgd",
    "momentum",
    "nesterov_momentum",
    "adagrad",
    "rmsprop",
    "adadelta",
    "adam",
    "adamax",
    "adamw",
    "amsgrad",
]
RATES = {name: {"learning_rate": 0.05} for name in RULES[:5]}


class Trained:
    """A perceptron with one hidden layer, and its step; sizes fill no cache line exactly."""

    def __init__(self, rule=updates.adam, shard="auto", hidden=21, **options):
        self.x = pt.fmatrix("x")
        self.params = [
            pytensor.shared(np.asarray(value, "float32"), name=name)
            for name, value in self.begin(hidden).items()
        ]
        W, b, v, c = self.params
        self.loss = pt.sqr(pt.tanh(self.x @ W + b) @ v + c - 1).mean()
        self.step = make_train_function(self.loss, self.params, [self.x], rule, shard=shard, **options)

    @staticmethod
    def begin(hidden=21):
        """Return the parameters before the first step."""
        random = np.random.default_rng(2)
        shapes = {"W": (3, hidden), "b": (hidden,), "v": (hidden,), "c": ()}
        return {name: np.asarray(random.normal(size=shape)) for name, shape in shapes.items()}

    def train(self, n_steps=3, **keywords):
        return [float(self.step(X, **keywords)) for _ in range(n_steps)]

    def values(self):
        return [variable.get_value() for variable in self.step.state]


def assert_equal(one, other, n_ranks=1):
    for a, b, variable in zip(one.values(), other.values(), one.step.state, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=variable.name)
    for variable in one.params:
        same_on_all(variable, n_ranks)


def is_divided(trained):
    return "live once" in "\n".join(trained.step.explanation())


@pytest.fixture(scope="module")
def pair(module_ranks):
    """Return two trainings that are compiled once: every rank updates all, and each a part."""
    return [Trained(updates.momentum, shard, learning_rate=0.05) for shard in (None, "auto")]


@pytest.fixture
def runs(pair):
    """Return the two trainings, with the values that they began with, and as many layouts to come."""
    begun = {"t": 0, **{name: value.astype("float32") for name, value in Trained.begin().items()}}
    for trained in pair:
        for variable in trained.step.state:
            value = begun.get(variable.name, np.zeros(variable.get_value().shape))
            synk.broadcast(variable, np.asarray(value, variable.type.dtype))
    finish = pair[1].step._items[-1]
    finish._n_layouts, finish._declined = 0, ""  # or all but the first tests would see every rank update all
    return pair


GEOMETRIES = [(7, 1), (1, 1), (7, 3), (2, 2)]  # rows, slices: some ranks have no rows


@pytest.mark.parametrize("name", [*map(slow, RULES[:6]), "adam", *map(slow, RULES[7:])])
def test_losses_and_variables_are_those_of_the_sequence(module_ranks, name):
    rule = getattr(updates, name)
    plain, divided = (Trained(rule, shard, **RATES.get(name, {})) for shard in (None, "auto"))
    for rows, num_slices in GEOMETRIES:
        losses = [one.train(batch=rows, num_slices=num_slices) for one in (plain, divided)]
        assert losses[0] == losses[1]
    assert is_divided(divided) == (module_ranks > 1)
    assert not is_divided(plain)
    assert_equal(plain, divided, module_ranks)


def test_variables_live_once_in_the_memory_of_the_machine(module_ranks, runs):
    if module_ranks == 1:
        pytest.skip("there is one rank")
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
def test_others_in_the_same_command_find_the_variables_as_before(module_ranks, what, place):
    runs = [Trained(updates.momentum, shard, learning_rate=0.05) for shard in (None, "auto")]
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
    if module_ranks > 1:
        assert "another part of its sequence changes or collects 'W'" in "\n".join(step.explanation())
        required = synk.sharded_update(update, flat_of(trained.step.parts), required=True)
        with pytest.raises(ValueError, match="cannot be divided among the ranks: another part"):
            synk.sequence(gradient, required, in_a_sequence(trained)[what])


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


def test_others_that_change_the_variables_now_and_then_do_not_end_the_division(module_ranks, runs):
    if module_ranks == 1:
        pytest.skip("there is one rank")
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
    if module_ranks > 1:
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
        pytest.skip("there is one rank")
    trained = runs[1]
    trained.train(1)
    with pytest.warns(synk.SynkWarning, match="changed rank 0 only"):
        trained.params[1].set_value(np.zeros(21, "float32"))
    with pytest.raises(ValueError, match="takes 'b' as equal on all ranks"):
        trained.step(X)
    synk.broadcast(trained.params[1])
    trained.train(1)


def test_parts_that_are_added_up_already_are_refused(module_ranks, runs):
    if module_ranks == 1:
        pytest.skip("there is one rank")
    trained = runs[1]
    parts = trained.step.parts
    divided = synk.sharded_update(parts.update, flat_of(parts))
    with pytest.raises(ValueError, match="adds up the ranks' parts of 'flat_gradient' by itself"):
        synk.sequence(parts.gradient, parts.all_reduce, divided)(X)
    synk.sequence(parts.gradient, divided)(X)
    parts.gradient(X)
    divided()


def flat_of(parts):
    return parts.all_reduce.args[0][0]


def test_the_sum_of_the_gradients_is_read_once_it_is_added_up(module_ranks):
    w, x = pytensor.shared(np.arange(3.0), name="w"), pt.dmatrix("x")
    made = updates.sgd(pt.sqr(x @ w).mean(), w, learning_rate=0.1)
    step = make_train_function(pt.sqr(x @ w).mean(), w, [x], lambda loss, params: made)
    norm = synk.function([], (global_norm(made.flat_gradient), None))
    expected = np.linalg.norm(2 * X.T @ (X @ np.arange(3.0)) / len(X))
    step(X)
    if module_ranks > 1:
        with pytest.raises(
            ValueError, match=r"call synk.all_reduce\(flat_gradient, 'sum'\) first, or .* shard=None"
        ):
            norm()
    synk.all_reduce(made.flat_gradient, "sum")
    np.testing.assert_allclose(norm(), expected, rtol=1e-12)


def test_the_parts_of_a_step_make_the_same_step(module_ranks, runs):
    whole, parts = runs
    whole.train(3)
    gradient, all_reduce, update, _ = parts.step.parts
    for _ in range(3):
        gradient(X)
        all_reduce()
        update()
    assert_equal(whole, parts, module_ranks)


@pytest.mark.slow
def test_learning_rates_are_inputs(module_ranks):
    runs = []
    for shard in (None, "auto"):
        rate = pt.fscalar("rate")
        trained = Trained(updates.momentum, shard, learning_rate=rate, bcast_inputs=[rate])
        for k in range(3):
            trained.step(X, np.float32(0.1 / (k + 1)))
        runs.append(trained)
    assert_equal(*runs, module_ranks)
    assert is_divided(runs[1]) == (module_ranks > 1)


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


def test_as_pytensor_changes_rank_0_alone(module_ranks, runs):
    if module_ranks == 1:
        pytest.skip("there is one rank")
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
    assert is_divided(runs[1]) == (module_ranks > 1)


def by_norms(loss, params):
    """Divide each parameter's gradient by the norm of the parameter, as LARS does."""
    plain = updates.sgd(loss, params, 0.1)
    pairs = [(p, p + (new - p) / pt.sqrt(1 + pt.sum(pt.sqr(p)))) for p, new in plain.param_updates]
    return plain._replace(param_updates=pairs)


def test_a_rule_that_needs_all_of_a_parameter_is_updated_by_every_rank(module_ranks):
    runs = [Trained(by_norms, shard) for shard in (None, "auto")]
    for trained in runs:
        trained.train(3)
    assert_equal(*runs, module_ranks)
    reason = "there is one rank" if module_ranks == 1 else "is not elementwise"
    assert reason in "\n".join(runs[1].step.explanation())
    if module_ranks > 1:
        with pytest.raises(ValueError, match="cannot be divided among the ranks: .*is not elementwise"):
            Trained(by_norms, "state")


def test_without_room_in_shared_memory_every_rank_updates_all(module_ranks, monkeypatch):
    if module_ranks != 2:  # the length that is refused below is of two ranks
        pytest.skip("there is one rank")
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


def without_room_for_arrays_of_each_rank(monkeypatch):
    """Refuse blocks in which each rank has its own array; vectors and staging buffers have room."""

    def refusing(self, *arguments):
        raise SharedMemoryFull("no room, says the test")

    monkeypatch.setattr(SharedStorage, "_allocate", refusing)


def test_without_room_for_the_flat_vectors_every_rank_updates_all(module_ranks, monkeypatch):
    if module_ranks == 1:
        pytest.skip("there is one rank")
    plain, divided = (Trained(updates.sgd, shard, hidden=500, learning_rate=0.05) for shard in (None, "auto"))
    without_room_for_arrays_of_each_rank(monkeypatch)
    assert plain.train() == divided.train()
    assert_equal(plain, divided, module_ranks)
    assert "there is no room for them in shared memory" in "\n".join(divided.step.explanation())


@pytest.mark.parametrize("what", ["set_value", slow("reduce"), slow("scatter")])
def test_without_room_what_changes_one_rank_changes_no_other(module_ranks, runs, monkeypatch, what):
    if module_ranks == 1:
        pytest.skip("there is one rank")
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
